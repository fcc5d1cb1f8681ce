"""A miniature LLM engine. Importing it loads no native code and starts nothing."""

try:
    from smoke_engine._version import __version__
except ImportError:  # a source tree that was never built
    __version__ = "unbuilt"

__all__ = ["__version__"]
