"""A look-alike of vLLM, for rehearsals."""

from .version import __version__  # isort: skip
import vllm.env_override  # noqa: F401

__all__ = ["__version__"]
