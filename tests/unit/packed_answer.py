"""What a container of :class:`builder.kernels.place.InImage` prints: its results, packed."""

import base64
import io
import tarfile


def packed(status=0, *, stdout="", stderr="", **files):
    """Return it for a program that wrote some texts; ``kernel_s`` is the file ``kernel.s``."""
    content = {f"out/{name.replace('_', '.')}": text for name, text in files.items()}
    content |= {"out/stdout": stdout, "out/stderr": stderr, "status": f"{status}\n"}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, text in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return base64.encodebytes(whole.getvalue()).decode()
