"""The Python half of the GPTQ kernel."""


def gptq_gemm(*arguments):
    """Return how many arguments the kernel would take."""
    return len(arguments)
