"""Containers that live for one question: a program run without network, or files read from one that never starts."""

from __future__ import annotations

import base64
import http
import io
import json
import math
import stat
import tarfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from builder.engine.port import Output
from builder.errors import VerifyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import docker

PURPOSE = {"org.gfx1100.purpose": "one-shot"}
LEFT_SECONDS = 3600  # a program that still needs its container has come back to it by then
LOG_LIMIT = "32m"  # of a program that writes without end only the last is kept
LINKS = 16  # symbolic links in a row, fewer than the kernel's 40
# the bits of Go's os.FileMode, which the engine's path answer uses (https://pkg.go.dev/io/fs#FileMode)
GO_SYMLINK = 1 << 27
GO_TYPE = 1 << 31 | GO_SYMLINK | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19


def run_once(
    client: docker.APIClient,
    image: str,
    argv: Sequence[str],
    *,
    files: Mapping[str, bytes],
    timeout: float,
    user: str | None = None,
    mounts: Mapping[str, str] | None = None,
) -> Output:
    """Run a program in a new container without network and remove the container, however it ends."""
    import docker.errors
    import requests
    from docker.types import LogConfig, Mount

    binds = [Mount(seen, host, type="bind", read_only=True) for host, seen in (mounts or {}).items()]
    _sweep(client)
    made = client.create_container(
        image,
        entrypoint=[argv[0]],
        command=list(argv[1:]),
        labels=PURPOSE,
        user=user,
        use_config_proxy=False,
        host_config=client.create_host_config(
            network_mode="none",
            security_opt=["no-new-privileges"],
            mounts=binds,
            log_config=LogConfig(type="json-file", config={"max-size": LOG_LIMIT}),
        ),
    )["Id"]
    try:
        if files:
            client.put_archive(made, "/", _tar(files))
        try:
            client.start(made)
        except docker.errors.APIError as no:
            said = str(no.explanation)
            if "executable file not found" in said or "no such file or directory" in said:
                return Output(returncode=127, stdout="", stderr=said)
            raise
        try:
            status = client.wait(made, timeout=math.ceil(timeout))["StatusCode"]
        except (requests.ReadTimeout, requests.ConnectionError) as late:
            if isinstance(late, requests.ConnectionError) and "timed out" not in str(late):
                raise
            raise VerifyError(
                f"`{' '.join(argv)[:200]}` in {image} did not end within {timeout:.0f} s and was killed",
                hint=client.logs(made, tail=10).decode(errors="replace").strip(),
            ) from late
        out, err = (client.logs(made, stdout=out, stderr=not out).decode(errors="replace") for out in (True, False))
        return Output(returncode=status, stdout=out, stderr=err)
    finally:
        client.remove_container(made, force=True, v=True)


def read_files(client: docker.APIClient, image: str, paths: Sequence[str], *, limit: int) -> dict[str, bytes]:
    """Return files of an image; what is missing or no regular file is left out."""
    _sweep(client)
    # an image without a command of its own needs some word here; it never runs
    made = client.create_container(image, entrypoint=["none"], labels=PURPOSE, use_config_proxy=False)["Id"]
    try:
        found = {path: _read(client, made, path, limit) for path in paths}
    finally:
        client.remove_container(made, force=True, v=True)
    return {path: data for path, data in found.items() if data is not None}


def tar_of_folders(names: Sequence[str], *, user: int, group: int) -> bytes:
    """Return a tar of empty folders that belong to a user."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, stat.S_IRWXU, user, group
            archive.addfile(member)
    return whole.getvalue()


def _sweep(client: docker.APIClient) -> None:
    """Remove containers that programs left which were killed; what another program may still read stays."""
    import docker.errors

    stopped = {"label": [f"{key}={value}" for key, value in PURPOSE.items()], "status": ["created", "exited", "dead"]}
    before = datetime.now(UTC) - timedelta(seconds=LEFT_SECONDS)
    for one in client.containers(all=True, filters=stopped):
        if datetime.fromtimestamp(one["Created"], UTC) > before:
            continue
        try:
            # what ran for long may have ended just now; of one that never ran this is the year 1
            if datetime.fromisoformat(client.inspect_container(one["Id"])["State"]["FinishedAt"]) < before:
                client.remove_container(one["Id"], v=True)
        except docker.errors.APIError as error:
            # another program removes it, or started it
            if error.status_code not in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT}:
                raise


def _read(client: docker.APIClient, made: str, path: str, limit: int) -> bytes | None:
    at, told = path, _stat(client, made, path)
    for _ in range(LINKS):
        if told is None or not told["mode"] & GO_SYMLINK:
            break
        # the engine resolves the link below the image's root, never on the host
        at = told["linkTarget"]
        told = _stat(client, made, at)
    if told is None or told["mode"] & GO_TYPE:
        return None
    if told["size"] > limit:
        raise VerifyError(f"{path} has {told['size']} bytes, more than the {limit} that are expected of it")
    chunks, _ = client.get_archive(made, at)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.next()
        held = archive.extractfile(member) if member is not None else None
        return None if held is None else held.read()


def _stat(client: docker.APIClient, made: str, path: str) -> dict[str, Any] | None:
    """Ask for a path's metadata alone (``HEAD /containers/ID/archive``), which docker-py has no call for."""
    url = f"{client.base_url}/v{client.api_version}/containers/{made}/archive"
    with client.head(url, params={"path": path}, timeout=client.timeout) as answer:
        if answer.status_code == http.HTTPStatus.NOT_FOUND:
            return None
        answer.raise_for_status()
        told: dict[str, Any] = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
        return told


def _tar(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of the files alone: a folder's entry would change the mode of one that the image has."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(data), stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH
            archive.addfile(member, io.BytesIO(data))
    return whole.getvalue()
