"""Launches of the verify and decode kernels on RDNA."""

from sglang.kernels.ops.attention.rdna_verify_adapter import RdnaVerifyBuffers


class TritonAttnBackend:
    """The launches."""

    def _rdna_unified_verify(self):
        return RdnaVerifyBuffers(
            segments=32,
        )

    def _rdna_unified_decode(self):
        return RdnaVerifyBuffers(
            segments=64,
        )
