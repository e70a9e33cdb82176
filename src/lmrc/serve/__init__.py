"""``lmrc serve``: a model in a browser or over HTTP: teach it, predict with it. Extra ``serve``."""
