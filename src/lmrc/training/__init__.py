"""Training: mini-batches on the device, exemplars, and the optimisation loop."""
