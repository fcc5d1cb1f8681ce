"""The commands that look before anything is started: the host, the serve command, the memory. None changes anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.console import table
from builder.errors import HostError, UsageError

if TYPE_CHECKING:
    from builder.cli.state import State
    from builder.host.fitness import Around
    from builder.host.host import Host
    from builder.lint.command import Command
    from builder.lint.rule import Finding
    from builder.models.profile import Profile

UNFIT = 3
ERRORS = 2
ProfileName = Annotated[str, typer.Argument(metavar="PROFILE", help="Name of a profile, or a YAML file.")]
HostRoot = Annotated[
    Path | None, typer.Option("--host-root", metavar="DIR", help="A copy of a host: its sys, proc and dev.")
]
ModelOption = Annotated[Path | None, typer.Option("--model", metavar="DIR", help="The checkpoint.")]
ImageOption = Annotated[
    str | None, typer.Option("--image", metavar="REF", help="Read the engine's own host, in a container of this image.")
]


def doctor(
    context: typer.Context,
    *,
    host_root: HostRoot = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="PROFILE", help="Ask for this profile, too.")
    ] = None,
    model: ModelOption = None,
    image: ImageOption = None,
) -> None:
    """Say whether this GPU host is fit, and what to do when it is not; end with 3 then.

    Example: gfx1100 doctor --profile vllm-octave-256k --model /srv/models/qwen3.8-27b
    """
    from builder.host.doctor import diagnose
    from builder.host.fitness import Around, profile_checks
    from builder.models.profile import load_profile

    state: State = context.obj
    wanted = load_profile(state.root, profile) if profile else None
    host, engine, around = _surroundings(state, host_root, image, Around(root=state.root, model=model), wanted)
    found = diagnose(
        host, engine=engine, disk_free=around.disk_free, more=profile_checks(host, wanted, around) if wanted else ()
    )
    state.console.result(found.as_json(), found.text())
    if not found.ok:
        raise typer.Exit(UNFIT)


def lint(
    context: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROFILE|FILE|-- COMMAND", help="A profile, a compose file, or a command after --."),
    ] = None,
    *,
    service: Annotated[str | None, typer.Option("--service", help="The service of a compose file.")] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", metavar="VERSION", help="Such as 0.31, for flags that changed.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="Look which operators this image has.")
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Print the command with every safe change made.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="Print all rules as a page.")] = False,
) -> None:
    """Hold a serve command against the rules; end with 2 on errors, pass on warnings.

    Example: gfx1100 lint -- docker run --device /dev/kfd vllm vllm serve /models/m --tensor-parallel-size 2
    """
    from builder.lint.run import RULES, fixed, rules_page
    from builder.lint.run import lint as check

    state: State = context.obj
    if rules:
        listed = [{"id": r.id, "severity": r.severity, "engine": r.engine, "reason": r.reason} for r in RULES]
        state.console.result({"rules": listed}, rules_page())
        return
    command = _command(state, target or [], service, engine_version)
    if image is not None:
        from builder.lint.operators import operators_of

        command = replace(command, ops=operators_of(state.engine, image))
    findings = check(command)
    value: dict[str, Any] = {"engine": command.engine, "findings": [finding.as_json() for finding in findings]}
    text = _findings_text(findings)
    if fix:
        better = fixed(command)
        value |= {
            "fixed": {"command": better.words(), "environment": dict(better.environment), "text": better.text()},
            "left": [finding.as_json() for finding in check(better)],
        }
        findings = check(better)
        text += f"\n\n{better.text()}\n\n{len(findings)} finding(s) left for you to decide"
    state.console.result(value, text)
    if any(finding.rule.severity == "error" for finding in findings):
        raise typer.Exit(ERRORS)


def plan(
    context: typer.Context,
    profile: ProfileName,
    *,
    model: ModelOption = None,
    host_root: HostRoot = None,
    image: ImageOption = None,
) -> None:
    """Show what a profile needs of cards, RAM and /dev/shm, how many tokens fit, and which flag to change.

    Example: gfx1100 plan vllm-octave-256k --model /srv/models/qwen3.8-27b
    """
    from builder.host.host import read_engine_host, read_host
    from builder.models.profile import load_profile
    from builder.plan.plan import HostMemory
    from builder.plan.plan import plan as planned

    state: State = context.obj
    wanted = load_profile(state.root, profile)
    host = read_engine_host(state.engine, image) if image else read_host(host_root or Path("/"))
    memory = host.memory() if host.chosen or host_root else HostMemory()
    if not memory.vram:
        state.console.note(f"{host.where} has no gfx1100 card: planned for cards of 24 GB")
    found = planned(wanted, state.root, model=model, host=memory)
    state.console.result(found.as_json(), found.text())
    if not found.fits:
        raise typer.Exit(UNFIT)


def _surroundings(
    state: State, host_root: Path | None, image: str | None, around: Around, wanted: Profile | None
) -> tuple[Host, str | None, Around]:
    """Return the host, the engine's name and what surrounds a profile there."""
    import os
    import shutil

    from builder.deploy.labels import DEPLOYMENT
    from builder.engine.address import resolve_address
    from builder.host.host import read_engine_host, read_host

    if host_root is not None:
        host = read_host(host_root)
        return host, host.facts.get("engine"), replace(around, disk_free=host.facts.get("disk_free"))
    try:
        engine = state.engine
    except HostError as trouble:
        state.console.note(f"no engine answers: {trouble.message}")
        return read_host(), None, around
    url = engine.environment.get("DOCKER_HOST", "")
    named = f"{engine.name} (from {resolve_address(os.environ).origin})"
    if image is not None or not url.startswith("unix://"):
        if image is None:
            raise UsageError(
                f"{engine.name} is on another machine", hint="name an image there that has python3: --image"
            )
        return read_engine_host(engine, image), named, around
    running = [one for one in engine.containers(DEPLOYMENT) if one.state == "running"] if wanted else []
    ours = wanted is not None and any(one.labels.get(DEPLOYMENT) == wanted.name for one in running)
    held = frozenset({wanted.port}) if wanted and ours else frozenset()
    data = engine.data_root()
    free = shutil.disk_usage(data).free if data.is_dir() else None
    return read_host(rootless="/run/user/" in url), named, replace(around, disk_free=free, own_ports=held)


def _command(state: State, target: list[str], service: str | None, version: str | None) -> Command:
    from builder.files import read_text
    from builder.lint.compose import of_compose, of_docker_run
    from builder.lint.words import of_profile, of_words, split
    from builder.models.base import parse_yaml
    from builder.models.profile import load_profile, profile_names

    if not target:
        raise UsageError("nothing to lint", hint="a profile, a compose file, or a command after --")
    path = Path(target[0])
    file = path.suffix in {".yaml", ".yml"} and (" " not in target[0] or path.is_file())
    if len(target) > 1 and (file or target[0] in profile_names(state.root)):
        raise UsageError(f"profiles and files are linted one at a time, found {', '.join(target)}")
    if len(target) == 1 and " " in target[0] and not file:
        target = split(target[0])
    elif len(target) == 1:
        if file and "services" in parse_yaml(read_text(path), path):
            return of_compose(path, service=service, version=version)
        return of_profile(load_profile(state.root, target[0]), version=version)
    if target[0].rsplit("/", 1)[-1] in {"docker", "podman", "sudo", "nerdctl"} and "run" in target:
        return of_docker_run(target, version=version)
    return of_words(target, version=version)


def _findings_text(findings: list[Finding]) -> str:
    if not findings:
        return "nothing found"
    lines = [
        table(
            ["", "rule", "flag", "found"],
            [(f.rule.severity, f.rule.id, f.found.flag, f.found.message) for f in findings],
        )
    ]
    lines += ["", *(f"{f.found.flag}: {f.found.fix}  [{f.rule.id}]" for f in findings)]
    return "\n".join(lines)
