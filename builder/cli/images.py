"""The commands from a stack to a published image and back along its chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.state import State
from builder.console import table
from builder.errors import UsageError, VerifyError

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


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (lock, render, stage, build, verify, publish, pull, trace):
        app.command()(command)


def lock(
    context: typer.Context,
    stack: StackName,
    *,
    update: Annotated[bool, typer.Option("--update", help="Move the pins to what upstream has now.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 2 when stack and lock disagree.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask nobody; what is not known stays unresolved.")] = False,
) -> None:
    """Resolve commit, bases, wheels, series and template of a stack into its lock.

    Example: gfx1100 lock smoke --update
    """
    from builder.files import write_atomic
    from builder.models.lock import load_lock, lock_path
    from builder.models.stack import load_stack
    from builder.resolve.lock import differences, resolve, stale

    state: State = context.obj
    wanted, path = load_stack(state.root, stack), lock_path(state.root, stack)
    previous = load_lock(state.root, stack) if path.exists() or check else None
    if check and previous is not None:
        found = stale(state.root, wanted, previous, settings=state.settings)
        if found:
            raise UsageError(f"{path} is stale: {'; '.join(found)}", hint=f"run `gfx1100 lock {stack}`")
        state.console.result({"stack": stack, "stale": []}, f"{path} is up to date")
        return
    fresh = resolve(state.root, wanted, settings=state.settings, previous=previous, update=update, offline=offline)
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
    if (stack is None) != everything:
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
) -> None:
    """Stage, build with BuildKit, verify, record.

    Example: gfx1100 build smoke --jobs 2
    """
    from builder.build.run import build as build_stack
    from builder.stage.context import Origin

    state: State = context.obj
    origin = Origin(
        location=source, ref=ref, dirty=dirty, allow_missing=tuple(allow_missing or ()), patches=tuple(patches or ())
    )
    record, path = build_stack(
        state.root,
        *stack_and_lock(state, stack),
        engine=state.engine,
        origin=origin,
        settings=state.settings if jobs is None else state.settings.model_copy(update={"jobs": jobs}),
        console=state.console,
        records=state.records,
        no_cache=no_cache,
    )
    state.console.result(
        {**record.model_dump(mode="json"), "record": str(path)}, f"{_checks_text(record)}\nrecord: {path}"
    )


def verify(
    context: typer.Context,
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Image reference or id.")],
    *,
    stack: Annotated[
        str | None, typer.Option("--stack", help="What it should be; by default what its label says.")
    ] = None,
) -> None:
    """Run all static and in-image checks; no GPU is needed.

    Example: gfx1100 verify gfx1100/smoke:latest
    """
    from builder.verify.run import verify_image

    state: State = context.obj
    found = verify_image(state.engine, image, stack=stack, root=state.root)
    rows = [(check.status, check.id, check.message) for check in found.checks]
    text = table(["", "check", "found"], rows)
    if found.verdict != "ok":
        bad = ", ".join(check.id for check in found.checks if check.status == "failed")
        state.console.result(found.model_dump(mode="json"), text)
        raise VerifyError(f"{image} failed: {bad}", hint="each failed line above says what was found")
    state.console.result(found.model_dump(mode="json"), text)


def publish(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="STACK|RECORD", help="A stack (its newest record) or a record file.")],
    *,
    to: Annotated[str | None, typer.Option("--to", metavar="REPO", help="host[:port]/name to push to.")] = None,
    channel: Annotated[str, typer.Option("--channel", help="The tag that moves last.")] = "latest",
) -> None:
    """Push the verified image and its record; the channel tag moves last.

    Example: gfx1100 publish smoke --to 127.0.0.1:5000/smoke
    """
    from builder.models.record import read_record, write_record
    from builder.registry.publish import publish as publish_record

    state: State = context.obj
    target = to or state.settings.registry
    if target is None:
        raise UsageError("no repository is named", hint="give --to HOST/NAME or set registry in gfx1100.local.yaml")
    record = read_record(Path(what)) if what.endswith(".json") else newest_record(state, what)
    done = publish_record(
        state.engine, record, to=target, channel=channel, settings=state.settings, on_progress=state.console.step
    )
    write_record(state.records, done.record)
    published = done.record.published
    if published is None:
        raise AssertionError
    state.console.result(
        {
            "digest": published.digest,
            "tag": published.tag,
            "repository": published.repository,
            "pushed_bytes": done.pushed_bytes,
        },
        f"{published.repository}@{published.digest}\ntag {published.tag}, {done.pushed_bytes / 1e6:.1f} MB pushed",
    )


def pull(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="REF", help="repository@digest, or repository:tag.")],
) -> None:
    """Pull an image by digest and check it against its record.

    Example: gfx1100 pull 127.0.0.1:5000/smoke:latest
    """
    from builder.registry.pull import pull as pull_image

    state: State = context.obj
    done = pull_image(
        state.engine, reference, records=state.records, settings=state.settings, on_progress=state.console.step
    )
    state.console.result(
        {
            "digest": done.digest,
            "pulled_bytes": done.pulled_bytes,
            "image_id": done.image.id,
            "stack": done.record.stack,
        },
        f"{done.digest}, {done.pulled_bytes / 1e6:.1f} MB pulled\n"
        f"its record agrees: {done.record.stack} {done.record.version}",
    )


def trace(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="CONTAINER|IMAGE|RECORD")],
) -> None:
    """Walk the chain from a container, an image or a record down to the upstream commit.

    Example: gfx1100 trace gfx1100-smoke
    """
    from builder.verify.trace import trace as walk

    state: State = context.obj
    chain = walk(state.engine, target, records=state.records)
    state.console.result(chain.as_json(), chain.text())
    if chain.broken:
        link = chain.broken
        raise VerifyError(
            f"the chain of {target} breaks at {link.name}: expected {link.expected}, found {link.found}",
            hint="rebuild or pull the image again; do not run what cannot be traced",
        )


def newest_record(state: State, stack: str) -> Record:
    """Return the newest record of a stack.

    Raises:
        UsageError: There is none.
    """
    from builder.models.record import read_record
    from builder.models.stack import load_stack

    load_stack(state.root, stack)
    records = [read_record(path) for path in state.records.glob(f"{stack}-*.json")]
    ours = [record for record in records if record.stack == stack]
    if not ours:
        raise UsageError(f"there is no record of {stack} in {state.records}", hint=f"run `gfx1100 build {stack}`")
    return max(ours, key=lambda record: record.created)


def stack_and_lock(state: State, name: str) -> tuple[Stack, Lock]:
    """Return a stack of the checkout and its lock."""
    from builder.models.lock import load_lock
    from builder.models.stack import load_stack

    return load_stack(state.root, name), load_lock(state.root, name)


def _checks_text(record: Record) -> str:
    checks = record.verification.checks if record.verification else ()
    return table(["", "check", "found"], [(check.status, check.id, check.message) for check in checks])
