"""Registries: references, a small client, records as referrers, publish and pull."""
