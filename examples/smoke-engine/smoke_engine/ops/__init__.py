"""Triton kernels. Each module needs triton; nothing else in the package imports one."""
