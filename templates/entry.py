#!/usr/bin/env python3
"""Starts the server with amdsmi imported before torch, in this process and in those that it spawns.

``gfx1100-entry NAME [ARGUMENT...]``: NAME is a console script of an installed distribution, or a module. A spawned
worker reads this file first, too, so that the import stands before its torch as well.
"""

import contextlib
import importlib.metadata
import runpy
import sys

with contextlib.suppress(Exception):  # no GPU stack here: the server says so in its own words
    import amdsmi  # noqa: F401


def main() -> None:
    """Hand over to the program that the first argument names."""
    del sys.argv[0]
    found = list(importlib.metadata.entry_points(group="console_scripts", name=sys.argv[0]))
    if found:
        sys.exit(found[0].load()())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
