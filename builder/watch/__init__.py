"""The watchdog: every new upstream commit, tried against the series, told once."""
