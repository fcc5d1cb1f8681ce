"""The kernels."""

from sgl_kernel import common_ops  # noqa: F401
from sgl_kernel.gemm import gptq_gemm  # noqa: F401
