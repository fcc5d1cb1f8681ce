"""Serve an image: start, wait until it has answered a prompt, switch over, roll back."""
