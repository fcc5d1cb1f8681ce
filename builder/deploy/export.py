"""A profile as files for people who run things their own way: Docker Compose, Kubernetes, systemd."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.deploy import warm_up
from builder.deploy.labels import ANYWHERE, container_name
from builder.deploy.mounts import model_mounts
from builder.deploy.spec import CACHE, COMPILING, cache_volume, environment_of
from builder.errors import UsageError
from builder.files import read_text
from builder.registry.reference import parse_reference
from builder.stage.render import templates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.host.host import Host
    from builder.models.profile import Profile

Format = Literal["compose", "kubernetes", "systemd"]
# the user of the images that are built here (templates/Dockerfile.*.j2)
USER = 10001
FIRST_NODE = 128  # DRM numbers render nodes from here (https://docs.kernel.org/gpu/drm-uapi.html#render-nodes)
PROBE_PATH = "/gfx1100/warm-up.py"
UNMOUNTABLE = re.compile(r"[:\x00-\x1f\x7f]")
PLAIN = re.compile(r"[\w./:@+,=-]*")


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A model folder: its name, its variable, its path on the host (empty when none was named) and in the container."""

    name: str
    variable: str
    host: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written: the text of each file, the file that is the main one, and the next step."""

    files: Mapping[str, str]
    main: str
    step: str

    def as_json(self) -> dict[str, Any]:
        """Return what ``export --json`` prints."""
        return {"files": dict(self.files), "main": self.main, "next": self.step}


def export(
    root: Path,
    profile: Profile,
    form: Format,
    *,
    reference: str,
    host: Host | None = None,
    model: Path | None = None,
    drafter: Path | None = None,
    replicas: int = 1,
    timers: Callable[[], Mapping[str, str]] | None = None,
) -> Exported:
    """Return the files of a profile.

    Args:
        root: The checkout, which holds ``templates/``.
        profile: How to serve.
        form: For whom.
        reference: The image as ``repository@digest``.
        host: The host that it is for, when this is it; else its values are left for its owner to fill in.
        model: The model folder on the host that it is for.
        drafter: The draft model's folder, likewise.
        replicas: How many of them (Kubernetes alone).
        timers: Returns the watchdog's units, which go with those of systemd.

    Raises:
        UsageError: The image is not named by its digest, or a value cannot stand in such a file.
    """
    if "@" not in reference or parse_reference(reference).digest is None:
        raise UsageError(
            f"{reference} is no repository@digest, and a file that is kept must not name an image that can change",
            hint="publish it first (`gfx1100 publish`), or name one with --image REPOSITORY@sha256:…",
        )
    if replicas != 1 and form != "kubernetes":
        raise UsageError("--replicas is for Kubernetes: elsewhere a host's cards hold one deployment of a profile")
    if form != "kubernetes":
        _check_folders({"--model": model, "--drafter": drafter})
    values = _values(profile, reference, host, model, drafter) | {"replicas": replicas}
    name, render = values["name"], _renderer(root, values)
    probe = {} if values["probe"] is None else {"warm-up.py": values["warm_up"]}
    if form == "compose":
        files = {"compose.yaml": render("compose.yaml.j2"), ".env": render("compose.env.j2"), **probe}
        return Exported(files=files, main="compose.yaml", step="fill in .env, then `docker compose up --detach --wait`")
    if form == "kubernetes":
        files = {"kubernetes.yaml": render("kubernetes.yaml.j2")}
        return Exported(files=files, main="kubernetes.yaml", step="`kubectl apply -f kubernetes.yaml`")
    unit = f"{name}.service"
    files = {unit: render("deployment.service.j2"), f"{name}.env": render("compose.env.j2"), **probe}
    files |= {f"gfx1100-{each}": text for each, text in (timers() if timers else {}).items()}
    step = (
        f"fill in {name}.env; sudo install -D -m 644 -t /etc/gfx1100 {' '.join([f'{name}.env', *probe])}; "
        f"sudo install -m 644 -t /etc/systemd/system *.service *.timer; sudo systemctl enable --now {name}"
    )
    return Exported(files=files, main=unit, step=step)


def _values(
    profile: Profile, reference: str, host: Host | None, model: Path | None, drafter: Path | None
) -> dict[str, Any]:
    """Return what the templates read."""
    cards = host.chosen[: profile.gpus] if host and len(host.chosen) >= profile.gpus else ()
    usual = [f"/dev/dri/renderD{FIRST_NODE + at}" for at in range(profile.gpus)]
    cached = profile.engine in COMPILING
    ours = profile.stack is not None or cached
    wanted = (
        ("model", "MODEL_DIR", model, profile.model),
        ("drafter", "DRAFTER_DIR", drafter, profile.needs.drafter if profile.needs else None),
    )
    folders = [
        Folder(name=name, variable=variable, host=str(given.absolute()) if given else "", at=at)
        for name, variable, given, at in wanted
        if at is not None
    ]
    links = {
        str(there): at
        for name, _, given, inside in wanted
        if inside is not None and given is not None and given.is_dir()
        for there, (at, _) in model_mounts(given, inside).items()
        if at != inside
    }
    return {
        "profile": profile,
        "name": container_name(profile.name).replace(".", "-"),
        "image": reference,
        "environment": environment_of(profile),
        "nodes": [card.render_node for card in cards] if cards else usual,
        "groups": host.gids_of(cards) if host and cards else (),
        "folders": folders,
        "links": sorted(links.items()),
        "cache": cache_volume(reference.partition("@")[2]) if cached else None,
        "cache_path": CACHE,
        "user": USER if ours else None,
        "group": USER if ours else None,
        "probe": _probe(profile) if ours else None,
        "warm_up": read_text(Path(warm_up.__file__)),
        "reached": "127.0.0.1" if profile.address in ANYWHERE else profile.address,
    }


def _check_folders(folders: Mapping[str, Path | None]) -> None:
    """Return when a mount of Docker can name every folder, whose ends it divides by colons."""
    for flag, folder in folders.items():
        if folder is not None and UNMOUNTABLE.search(str(folder.absolute())):
            raise UsageError(
                f"{flag} {str(folder.absolute())!r} holds a colon or a line break, which a mount cannot name",
                hint="give the folder another name, or a link to it",
            )


def _probe(profile: Profile) -> list[str]:
    """Return the command that asks the first prompts, and afterwards only for the server's health."""
    base = f"http://127.0.0.1:{profile.port}"
    ready = profile.ready
    # the image's own folder for scratch files; the mark goes with the container
    mark = "/tmp/gfx1100-warm"  # noqa: S108
    return ["python3", PROBE_PATH, base, "--prompt", ready.prompt, "--health", ready.health, "--mark", mark]


def _renderer(root: Path, values: Mapping[str, Any]) -> Callable[[str], str]:
    environment = templates(root)
    environment.filters |= {
        "word": _word,
        "compose": lambda text: _word(text.replace("$", "$$")),
        "argument": lambda text: _word(text.replace("$(", "$$(")),
        "exec": _exec,
        "exec_inner": lambda text: _line(text).replace("%", "%%").replace("$", "$$"),
        "plain": lambda text: _line(text).replace("%", "%%"),
        "env": _env,
    }
    return lambda name: environment.get_template(name).render(values)


def _word(text: str) -> str:
    """Return a text as a YAML scalar; JSON's strings are YAML's."""
    return json.dumps(text, ensure_ascii=False)


def _exec(text: str) -> str:
    """Return a word of ExecStart (systemd.service(5), "Command lines"): quoted, nothing in it is expanded."""
    escaped = _line(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if PLAIN.fullmatch(text) else f'"{escaped}"'


def _env(text: str) -> str:
    """Return a value of an env file, as both Compose and systemd read it."""
    if "'" in text:
        raise UsageError(f"{text} holds a quotation mark, which an env file cannot hold")
    return _line(text) if PLAIN.fullmatch(text) else f"'{_line(text)}'"


def _line(text: str) -> str:
    if "\n" in text or "\0" in text:
        raise UsageError(f"{text!r} holds a line break, which a unit or an env file cannot hold")
    return text
