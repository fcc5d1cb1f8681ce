"""The commands from a stack to a verified image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.state import State
from builder.console import table
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.models.lock import Lock
    from builder.models.record import Record
    from builder.models.stack import Stack

StackName = Annotated[str, typer.Argument(metavar="STACK", help="Name of a file in stacks/.")]
SourceOption = Annotated[
    str | None, typer.Option("--source", help="URL, bare repository or work tree to take the source from.")
]
RefOption = Annotated[
    str | None, typer.Option("--ref", help="Full ref (refs/heads/...) or commit to take instead of the lock's.")
]
DirtyOption = Annotated[
    bool, typer.Option("--dirty", help="Take a work tree with uncommitted changes; the version says so.")
]
MissingOption = Annotated[
    list[str] | None, typer.Option("--allow-missing", metavar="GLOB", help="Files that the source may lack.")
]
PatchesOption = Annotated[
    list[Path] | None,
    typer.Option("--patches", metavar="DIR", help="Folder of patches that are appended to the series."),
]


def lock(
    context: typer.Context,
    stack: StackName,
    *,
    update: Annotated[bool, typer.Option("--update", help="Move the pins to what upstream has now.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 2 when stack and lock disagree.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask nobody; what is not known stays unresolved.")] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fill the wheelhouse, so that a build needs no index.")
    ] = False,
) -> None:
    """Resolve commit, bases, wheels, series and template of a stack into its lock.

    Example: gfx1100 lock smoke --update
    """
    from builder.files import write_atomic
    from builder.models.lock import load_lock, lock_path
    from builder.models.stack import load_stack
    from builder.resolve.lock import differences, resolve, stale
    from builder.resolve.wheelhouse import filled

    state: State = context.obj
    if offline and download:
        raise UsageError("--offline asks nobody, and --download must")
    wanted, path = load_stack(state.root, stack), lock_path(state.root, stack)
    previous = load_lock(state.root, stack) if path.exists() or check else None
    if check and previous is not None:
        found = stale(state.root, wanted, previous, settings=state.settings)
        if found:
            raise UsageError(f"{path} is stale: {'; '.join(found)}", hint=f"run `gfx1100 lock {stack}`")
        state.console.result({"stack": stack, "stale": []}, f"{path} is up to date")
        return
    fresh = resolve(state.root, wanted, settings=state.settings, previous=previous, update=update, offline=offline)
    if download:
        fresh = filled(state.root, wanted, fresh, settings=state.settings)
    moved = differences(previous, fresh)
    if moved:
        write_atomic(path, fresh.text())
    state.console.result(
        {"stack": stack, "moved": moved, "unresolved": fresh.unresolved()},
        "\n".join([*(moved or ["nothing moves"]), *(f"unresolved: {name}" for name in fresh.unresolved())]),
    )


def render(
    context: typer.Context,
    stack: Annotated[str | None, typer.Argument(metavar="[STACK]")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All stacks.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 2 and a diff when one is stale.")
    ] = False,
) -> None:
    """Write dockerfiles/STACK/Dockerfile.

    Example: gfx1100 render --all --check
    """
    import difflib

    from builder.files import read_text, write_atomic
    from builder.models.stack import stack_names
    from builder.stage.render import dockerfile_path
    from builder.stage.render import render as rendered

    state: State = context.obj
    if (stack is None) != everything or stack == "":
        raise UsageError("name a stack, or give --all")
    diffs, names = [], [stack] if stack else stack_names(state.root)
    for name in names:
        path = dockerfile_path(state.root, name)
        text = rendered(state.root, *stack_and_lock(state, name))
        old = read_text(path) if path.exists() else ""
        if old != text:
            label = path.relative_to(state.root).as_posix()
            diffs.append(
                "".join(
                    difflib.unified_diff(
                        old.splitlines(keepends=True), text.splitlines(keepends=True), label, label + " (rendered)"
                    )
                )
            )
            if not check:
                write_atomic(path, text)
    if check and diffs:
        raise UsageError("stale Dockerfiles:\n" + "\n".join(diffs), hint="run `gfx1100 render --all`")
    state.console.result({"rendered": names, "changed": len(diffs)}, f"{len(names)} rendered, {len(diffs)} changed")


def stage(
    context: typer.Context,
    stack: StackName,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The build context to make.")],
    *,
    source: SourceOption = None,
    ref: RefOption = None,
    dirty: DirtyOption = False,
    allow_missing: MissingOption = None,
    patches: PatchesOption = None,
) -> None:
    """Export the source, apply the series, pin the version, render: the build context, without an engine.

    Example: gfx1100 stage vllm --source ../vllm.git --ref refs/heads/main -o context
    """
    from builder.stage.context import Origin, make_context

    state: State = context.obj
    origin = Origin(
        location=source, ref=ref, dirty=dirty, allow_missing=tuple(allow_missing or ()), patches=tuple(patches or ())
    )
    made = make_context(state.root, *stack_and_lock(state, stack), output, origin=origin, settings=state.settings)
    rows = [(patch.id, patch.outcome, ", ".join(file.path for file in patch.files)) for patch in made.patches]
    state.console.result(
        made.as_json(),
        f"{made.stack} {made.version} ({made.commit})\n{table(['patch', 'outcome', 'files'], rows)}\n"
        f"Dockerfile {made.dockerfile_sha256[:12]}, context {made.context_sha256[:12]}, "
        f"{made.context_bytes / 1e6:.1f} MB in {made.seconds:.1f} s: {made.folder}"
        + "".join(f"\nmissing: {path}" for path in made.missing),
    )


def build(
    context: typer.Context,
    stack: StackName,
    *,
    source: SourceOption = None,
    ref: RefOption = None,
    dirty: DirtyOption = False,
    allow_missing: MissingOption = None,
    patches: PatchesOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Compile jobs, instead of the number chosen.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every step anew.")] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="The same build on a base from distribution packages, with CPU torch.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="No step reaches the network: caches and wheelhouse have everything.")
    ] = False,
    stage: Annotated[
        str | None,
        typer.Option("--stage", metavar="NAME", help="Build this stage alone and push it to the setting build_cache."),
    ] = None,
) -> None:
    """Stage, build with BuildKit, verify, record.

    Example: gfx1100 build smoke --jobs 2
    """
    from builder.build.run import Job, build_stage
    from builder.build.run import build as build_stack
    from builder.models.stack import REHEARSAL, load_stack
    from builder.resolve.lock import ensure_lock
    from builder.stage.context import Origin

    state: State = context.obj
    origin = Origin(
        location=source, ref=ref, dirty=dirty, allow_missing=tuple(allow_missing or ()), patches=tuple(patches or ())
    )
    wanted = load_stack(state.root, stack + REHEARSAL if rehearse else stack)
    lock = ensure_lock(
        state.root, wanted, settings=state.settings, console=state.console, commit=ref is None and not dirty
    )
    job = Job(
        root=state.root,
        stack=wanted,
        lock=lock,
        engine=state.engine,
        origin=origin,
        settings=state.settings if jobs is None else state.settings.model_copy(update={"jobs": jobs}),
        console=state.console,
        no_cache=no_cache,
        install=rehearse,
        offline=offline,
    )
    if stage is not None:
        pushed = build_stage(job, stage)
        state.console.result({"stack": wanted.name, "stage": stage, "pushed": pushed}, pushed)
        return
    record, path = build_stack(job, state.records)
    state.console.result(
        {**record.model_dump(mode="json"), "record": str(path)}, f"{_checks_text(record)}\nrecord: {path}"
    )


def stack_and_lock(state: State, name: str) -> tuple[Stack, Lock]:
    """Return a stack of the checkout and its lock."""
    from builder.models.lock import load_lock
    from builder.models.stack import load_stack

    return load_stack(state.root, name), load_lock(state.root, name)


def _checks_text(record: Record) -> str:
    checks = record.verification.checks if record.verification else ()
    return table(["", "check", "found"], [(check.status, check.id, check.message) for check in checks])
