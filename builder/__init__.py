"""The gfx1100 image toolkit: from an upstream commit to a served container, with a chain that can be traced."""

__version__ = "0.1.0"
