"""The data that flows: stack, lock, record, profile; frozen, with strict keys."""
