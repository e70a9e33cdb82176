"""Learn a stream batch by batch, score every step, and sum it up."""
