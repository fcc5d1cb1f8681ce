"""Prove an image without a GPU: a probe inside it, static checks outside, and the chain from commit to container."""
