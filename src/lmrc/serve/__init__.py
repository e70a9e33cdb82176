"""``lmrc serve``: teach a model and predict with it in a browser or over HTTP."""
