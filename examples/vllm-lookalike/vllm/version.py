"""The version that the build wrote."""

from ._version import __version__

__all__ = ["__version__"]
