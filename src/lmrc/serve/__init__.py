"""``lmrc serve``: teach and ask models in a browser or over HTTP. Needs the extra ``serve``."""
