"""Class statistics, which replace the images of old classes, and prediction rules from them."""
