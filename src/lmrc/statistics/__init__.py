"""What is kept of the features of old classes in place of their images, and what it is good for."""
