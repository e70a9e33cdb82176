"""Training: mini-batches on the device, the rehearsal pool, the one loop."""
