"""From a patched tree to a build context: source, rendered Dockerfile, and the chain that the image carries."""
