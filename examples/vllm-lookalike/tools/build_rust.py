"""The fork describes its Rust parts here; the look-alike has none."""
