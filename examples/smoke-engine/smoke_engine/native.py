"""The native library, loaded by ctypes. It needs libamdhip64 and no GPU."""

import ctypes
from pathlib import Path

LIBRARY = Path(__file__).with_name("_C.gfx1100.so")


def load_library() -> ctypes.CDLL:
    """Load the library and declare its C functions.

    Raises:
        OSError: it was not built, or a library that it needs is missing.
    """
    library = ctypes.CDLL(str(LIBRARY))
    library.smoke_device_count.argtypes = []
    library.smoke_kv_int4_bytes.argtypes = [ctypes.c_int]
    kv_arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    library.smoke_kv_int4_pack.argtypes = kv_arguments
    library.smoke_kv_int4_unpack.argtypes = kv_arguments
    library.smoke_copy_b128.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p]
    return library
