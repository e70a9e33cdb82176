"""Learn a stream task by task, score every step, and sum it up."""
