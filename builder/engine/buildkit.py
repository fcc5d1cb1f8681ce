"""The builder: whichever command line of this host carries BuildKit, and its argument list.

docker-py only knows the classic builder, which has no ``--mount``; so builds go through the CLI.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.errors import HostError
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ASK_SECONDS = 30
# from this release the docker CLI hands every build to the buildx plugin and fails without it
# (https://docs.docker.com/engine/release-notes/23.0/)
WITHOUT_BUILDKIT = 23


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A command line that builds with BuildKit (or Podman's own builder).

    Attributes:
        kind: Its kind.
        program: Path of the program.
        version: What it says of itself.
        environment: Variables that it needs.
    """

    kind: Literal["buildx", "docker", "podman"]
    program: str
    version: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.kind} {self.version}"

    def argv(
        self,
        context: Path,
        *,
        dockerfile: Path,
        tags: Sequence[str],
        labels: Mapping[str, str],
        secrets: Mapping[str, Path],
        build_args: Sequence[str],
        made: Path,
        no_cache: bool = False,
        target: str | None = None,
        cache_from: Sequence[str] = (),
    ) -> list[str]:
        """Return the command line of one build.

        Args:
            context: The context folder.
            dockerfile: The Dockerfile.
            tags: Names for the image.
            labels: Labels for the image.
            secrets: Files by the id under which a ``RUN --mount=type=secret`` finds them; they leave no trace.
            build_args: Names of build arguments, whose values stand in the environment, so that a proxy's password
                is not seen in the list of processes; ``NAME=value`` where it may be seen.
            made: Where the builder writes which image it made, for :meth:`image_ids`.
            no_cache: Run every step anew.
            target: The stage to stop at.
            cache_from: Images of a registry whose layers may stand for steps; one that is not there is no fault.
        """
        # buildx takes the builder that somebody made active, which may not see the engine's images: the one called
        # default is always the engine itself
        head = {
            "buildx": ["buildx", "build", "--builder", "default", "--load", "--progress", "plain"],
            "docker": ["build", "--progress", "plain"],
            "podman": ["build", "--layers", "--format", "docker"],
        }[self.kind]
        pairs = [
            ("--file", [str(dockerfile)]),
            ("--metadata-file" if self.kind == "buildx" else "--iidfile", [str(made)]),
            ("--tag", tags),
            ("--label", [f"{key}={value}" for key, value in sorted(labels.items())]),
            ("--secret", [f"id={key},src={path}" for key, path in sorted(secrets.items())]),
            ("--build-arg", sorted(build_args)),
            ("--target", [target] if target else []),
            ("--cache-from", cache_from),
        ]
        flags = [word for flag, values in pairs for value in values for word in (flag, value)]
        return [self.program, *head, *flags, *(["--no-cache"] if no_cache else []), str(context)]

    def image_ids(self, made: Path) -> list[str]:
        """Return the digests that the engine may know the built image by: of its config, and of its manifest.

        Which one depends on the engine's image store: Docker's own, or containerd's, the default from Docker 29 on.
        """
        told = made.read_text().strip()
        if self.kind != "buildx":
            return [told]
        keys = ("containerimage.config.digest", "containerimage.digest")
        return [digest for key in keys if (digest := json.loads(told).get(key))]


def find_builder(environ: Mapping[str, str] | None = None) -> Builder:
    """Return the first command line on PATH that can build: buildx, a docker before 23, podman.

    Args:
        environ: The environment to look in and to run with, such as the engine's own added to this process's.

    Raises:
        HostError: None can; names the package to install.
    """
    env = os.environ if environ is None else environ
    dockers = list(_on_path("docker", env))
    for program in dockers:
        told = _ask([program, "buildx", "version"], env)
        if told is not None:
            # "github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3"
            version = told.split()[1] if len(told.split()) > 1 else told
            return Builder(
                kind="buildx", program=program, version=version, environment={"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
            )
    clients = {program: _ask([program, "--version"], env) or "" for program in dockers}
    for program, told in clients.items():
        number = re.search(r"version v?(\d+)\.(\S+?),?(?: |$)", told)
        if number and int(number[1]) < WITHOUT_BUILDKIT:
            version = f"{number[1]}.{number[2].split('+')[0]}"
            return Builder(kind="docker", program=program, version=version, environment={"DOCKER_BUILDKIT": "1"})
    for program in _on_path("podman", env):
        told = _ask([program, "--version"], env)
        if told is not None:
            return Builder(kind="podman", program=program, version=told.split()[-1])
    if dockers:
        raise HostError(
            f"{dockers[0]} has no BuildKit: its buildx plugin is missing",
            hint="install docker-buildx (Debian, Ubuntu) or docker-buildx-plugin (Docker's own packages)",
        )
    raise HostError(
        "neither docker nor podman is on PATH, so nothing can build an image",
        hint="`sudo apt-get install docker.io docker-buildx` (Debian 12: docker.io alone)",
    )


def _on_path(name: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield every program of that name on PATH, in order: the first one may be the one without BuildKit."""
    seen = set()
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".") / name
        if path.is_file() and os.access(path, os.X_OK) and path.resolve() not in seen:
            seen.add(path.resolve())
            yield str(path)


def _ask(argv: list[str], env: Mapping[str, str]) -> str | None:
    """Return what a program prints, or None when it fails."""
    done = run(argv, timeout=ASK_SECONDS, env=env, check=False, failure=HostError)
    return done.stdout.strip() if done.returncode == 0 else None
