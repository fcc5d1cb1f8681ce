"""A look-alike of SGLang, for rehearsals."""

from sglang._version import __version__

__all__ = ["__version__"]
