"""Code objects: which processors a library has code for, and the figures of its kernels; reads untrusted files."""

from builder.objects.kernels import CodeObject, Kernel
from builder.objects.survey import Library, read_library, survey

__all__ = ["CodeObject", "Kernel", "Library", "read_library", "survey"]
