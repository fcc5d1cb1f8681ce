"""``python -m builder.checkpoint``: the fixer where nothing but Python is at hand, such as inside an engine image."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from builder.checkpoint import Inspection, fix, inspect, undo
from builder.checkpoint.rewrite import Link
from builder.errors import ToolError, UsageError

ABOUT = "Tell whether a checkpoint's MTP layer loads, and rewrite its quantisation rules when it does not."
ACTIONS = ("inspect", "fix")
EXAMPLE = (
    "example: docker run --rm --user 1000:1000 -v /models:/models --entrypoint gfx1100-checkpoint IMAGE fix /models/M"
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m builder.checkpoint", description=ABOUT, epilog=EXAMPLE)
    parser.add_argument("action", choices=ACTIONS, help="inspect reads only; fix rewrites the rules")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the model folder")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="the new folder (default: DIR-mtp-fixed)")
    parser.add_argument("--in-place", action="store_true", help="change DIR itself and keep a backup")
    parser.add_argument("--undo", action="store_true", help="bring back what --in-place replaced")
    links = parser.add_mutually_exclusive_group()
    links.add_argument("--hard-links", dest="link", action="store_const", const="hard", help="instead of symlinks")
    links.add_argument("--copy", dest="link", action="store_const", const="copy", help="instead of links")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] not in ACTIONS and not given[0].startswith("-"):
        given.insert(0, "inspect")
    options = parser.parse_args(given)
    try:
        document, text = _run(options)
    except ToolError as trouble:
        if options.json:
            sys.stdout.write(json.dumps({"error": trouble.as_json()}) + "\n")
        sys.stderr.write(f"error: {trouble.message}\n" + (f"hint: {trouble.hint}\n" if trouble.hint else ""))
        return trouble.exit_code
    sys.stdout.write((json.dumps(document, indent=2) if options.json else text) + "\n")
    return 0


def describe(found: Inspection) -> str:
    """Return an inspection as text for people."""
    document = found.as_json()
    lines = [f"{found.verdict}: {found.reason}"]
    lines += [f"  {place}: {len(place.rules)} rules, {place.method}" for place in found.configs.places]
    lines += [
        f"  {entry['module']}: {entry['dtype']} in {module.tensors[0].shard}, "
        + ", ".join(f"{engine} builds {builds}" for engine, builds in entry["engines"].items())
        for entry, module in zip(document["mtp"], found.modules, strict=True)
    ]
    lines += [f"note: {note}" for note in found.notes]
    if found.verdict == "rewrite":
        lines.append(f"next: checkpoint fix {found.folder}")
    return "\n".join(lines)


def _run(options: argparse.Namespace) -> tuple[dict[str, object], str]:
    if options.action == "inspect":
        if options.output or options.in_place or options.undo or options.link:
            raise UsageError("inspect changes nothing: these options belong to fix")
        found = inspect(options.folder)
        return found.as_json(), describe(found)
    if options.undo:
        done = undo(options.folder)
    else:
        link: Link = options.link or "symlink"
        done = fix(options.folder, output=options.output, in_place=options.in_place, link=link)
    files = ", ".join(done.changed) or "nothing"
    text = f"{done.verdict}: {done.output}, changed {files}, {done.rules_before} rules before, {done.rules_after} now"
    return done.as_json(), text


if __name__ == "__main__":
    sys.exit(main())
