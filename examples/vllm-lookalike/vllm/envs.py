"""Settings from the environment, each read when it is asked for."""

import os

SETTINGS = {
    "VLLM_TARGET_DEVICE": lambda: os.getenv("VLLM_TARGET_DEVICE", "rocm").lower(),
    "VLLM_USE_PRECOMPILED": lambda: os.environ.get("VLLM_USE_PRECOMPILED", "") not in ("", "0"),
    "MAX_JOBS": lambda: os.getenv("MAX_JOBS"),
    "VLLM_PORT": lambda: int(os.getenv("VLLM_PORT", "8000")),
}


def __getattr__(name):
    if name in SETTINGS:
        return SETTINGS[name]()
    raise AttributeError(name)
