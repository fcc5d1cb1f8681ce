"""From a patched tree to a build context: the rendered Dockerfile, the source, and the chain that goes into the image."""
