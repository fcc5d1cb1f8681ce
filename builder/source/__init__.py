"""The source station: where an engine's code comes from, its exact files, and the version that they carry."""
