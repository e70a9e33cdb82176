"""Data sets, and streams of class batches made from them."""
