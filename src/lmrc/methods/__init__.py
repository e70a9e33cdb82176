"""Methods: each says what it optimises and how it predicts."""
