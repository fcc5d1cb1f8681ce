"""The container engine: a port, one implementation over docker-py, BuildKit through the CLI, and a local engine."""
