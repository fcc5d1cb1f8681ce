"""From a stack to its lock: the commit, the bases' digests, the wheels' hashes, the series and the template."""
