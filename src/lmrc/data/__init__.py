"""Data sets, and streams of tasks made from them."""
