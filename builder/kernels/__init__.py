"""Kernels compiled for gfx1100 without a GPU, before and after the patches: registers, LDS, spills, and their code."""
