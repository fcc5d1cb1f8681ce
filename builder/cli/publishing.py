"""The commands from a verified image to a registry and back, and along its chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.state import State
from builder.errors import HostError, UsageError, VerifyError

if TYPE_CHECKING:
    from builder.models.record import Record


def publish(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="STACK|RECORD", help="A stack (its newest record) or a record file.")],
    *,
    to: Annotated[str | None, typer.Option("--to", metavar="REPO", help="host[:port]/name to push to.")] = None,
    channel: Annotated[str, typer.Option("--channel", help="The tag that moves last.")] = "latest",
    sign: Annotated[
        str | None, typer.Option("--sign", metavar="KEY", help="Sign the digest with cosign: a key's file, or keyless.")
    ] = None,
) -> None:
    """Push the verified image, its record, SBOM and provenance; the channel tag moves last.

    Example: gfx1100 publish smoke --to 127.0.0.1:5000/smoke
    """
    from builder.build.release import release
    from builder.models.record import read_record

    state: State = context.obj
    record = read_record(Path(what)) if what.endswith(".json") else newest_record(state, what)
    target = to or state.settings.repository(record.stack)
    if target is None:
        raise UsageError("no repository is named", hint="give --to HOST/NAME or set registry in gfx1100.local.yaml")
    done = release(
        state.engine,
        record,
        to=target,
        channel=channel,
        sign=sign,
        settings=state.settings,
        records=state.records,
        on_progress=state.console.step,
    )
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
    what: Annotated[str, typer.Argument(metavar="STACK|REF", help="A stack, or repository@digest, or repository:tag.")],
    *,
    channel: Annotated[str, typer.Option("--channel", help="The tag of the stack that is followed.")] = "latest",
) -> None:
    """Pull an image by digest and check it against its record.

    Example: gfx1100 pull smoke
    """
    from builder.models.stack import stack_names
    from builder.registry.pull import pull as pull_image

    state: State = context.obj
    is_stack = what in stack_names(state.root)
    done = pull_image(
        state.engine,
        f"{repository_of(state, what)}:{channel}" if is_stack else what,
        stack=what if is_stack else None,
        records=state.records,
        settings=state.settings,
        on_progress=state.console.step,
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
    target: Annotated[str, typer.Argument(metavar="CONTAINER|IMAGE|RECORD|REF")],
    *,
    registry: Annotated[
        bool, typer.Option("--registry", help="Ask the registry of REF alone; without it, when the engine has no REF.")
    ] = False,
) -> None:
    """Walk the chain from a container, an image, a record or a registry's reference down to the upstream commit.

    Example: gfx1100 trace gfx1100-smoke
    """
    from builder.verify.published import trace_published
    from builder.verify.trace import trace as walk

    state: State = context.obj
    if registry or _is_elsewhere(state, target):
        chain = trace_published(target, settings=state.settings, on_progress=state.console.step)
    else:
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
    from builder.models.stack import load_stack

    load_stack(state.root, stack)
    records = _records(state, stack)
    if not records:
        raise UsageError(f"there is no record of {stack} in {state.records}", hint=f"run `gfx1100 build {stack}`")
    return records[-1]


def newest_verified(state: State, stack: str) -> Record:
    """Return the newest record of a stack, whose image may be run.

    Raises:
        UsageError: There is none.
        VerifyError: It was not verified, or failed.
    """
    from builder.registry.publish import require_verified

    record = newest_record(state, stack)
    require_verified(record)
    return record


def repository_of(state: State, stack: str) -> str:
    """Return the repository that a stack is published to: what the settings say, else where its newest record went.

    Raises:
        UsageError: Neither says anything.
    """
    named = state.settings.repository(stack)
    if named:
        return named
    published = [record.published for record in _records(state, stack) if record.published]
    if not published:
        raise UsageError(
            f"nothing says where {stack} is published",
            hint="set registry in gfx1100.local.yaml, such as HOST/NAME-{stack}, or name the image: HOST/NAME:latest",
        )
    return published[-1].repository


def _records(state: State, stack: str) -> list[Record]:
    """Return the records of a stack, the newest last."""
    from builder.models.record import read_record

    # the records of vllm-int8 begin with vllm- as well
    records = [read_record(path) for path in state.records.glob(f"{stack}-*.json")]
    return sorted((record for record in records if record.stack == stack), key=lambda record: record.created)


def _is_elsewhere(state: State, target: str) -> bool:
    """Whether a target names an image of a registry that the engine does not have, or cannot be asked about."""
    from builder.registry.reference import HUB, parse_reference

    if Path(target).exists() or "/" not in target:
        return False
    try:
        if parse_reference(target).host == HUB:
            return False
    except UsageError:
        return False
    try:
        return state.engine.image(target) is None
    except HostError:
        return True
