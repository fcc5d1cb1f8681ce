"""The first file of the package that imports torch."""

import os

import torch

os.environ.setdefault("VLLM_TORCH", torch.__version__)
