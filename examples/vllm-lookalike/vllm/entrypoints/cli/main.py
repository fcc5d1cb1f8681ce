"""The command ``vllm``."""

import sys

import vllm
from vllm import _C


def main():
    """Say who is there."""
    print("vllm look-alike", vllm.__version__, _C.answer(), sys.argv[1:])
