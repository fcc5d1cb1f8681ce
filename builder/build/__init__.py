"""Build a stack: is this host fit, the image, and the walk from the lock to the record."""
