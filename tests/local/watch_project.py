"""A made-up engine upstream, a checkout with a stack that follows it, and the watchdog run over the two."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from made_patches import diff, patch
from source_repos import MAIN, Repo

from builder.files import write_atomic
from builder.models.lock import lock_path
from builder.models.stack import load_stack
from builder.resolve.lock import resolve
from builder.settings import load_settings
from builder.stage.inputs import at_commit
from builder.watch.outcome import Options
from builder.watch.run import watch

START = datetime(2026, 1, 1, 5, 43, tzinfo=UTC)
LAUNCH = "def launch(queries):\n    tile = 16\n    return run(queries, tile)\n"
COPY = "void copy(int* dst, int v) {\n  builtin_store(dst, v);\n}\n"
DEFAULTS = "HOST = 'localhost'\nPORT = 8000\n\n# a request\nMAX_TOKENS = 16\n\n# the cache\nCACHE = 65536\n"
SERVER = 'parser.add_argument("--host")\nparser.add_argument("--max-model-len")\nSMOKE_FAST = environ("SMOKE_FAST")\n'
OPS = 'ops.def("gemm_rdna3(Tensor a) -> Tensor");\nops.def("copy_b128(Tensor a) -> Tensor");\n'
FILES = {
    "smoke_engine/launch.py": LAUNCH,
    "smoke_engine/defaults.py": DEFAULTS,
    "smoke_engine/server.py": SERVER,
    "smoke_engine/verify.py": "VERIFY = 1\n",
    "csrc/copy.hip": COPY,
    "csrc/torch_bindings.cpp": OPS,
    "requirements/common.txt": "torch==2.11.0\nnumpy>=1.26  # a comment\n",
    "CMakeLists.txt": 'set(TORCH_SUPPORTED_VERSION_ROCM "2.11.0")\n',
    "docs/readme.md": "a text\n",
    "README.md": "an engine\n",
}
LIMIT = """
--- a/smoke_engine/defaults.py
+++ b/smoke_engine/defaults.py
@@ -3,4 +3,4 @@

 # a request
-MAX_TOKENS = 16
+MAX_TOKENS = 32

""".replace("@@\n\n", "@@\n \n").replace("32\n\n", "32\n \n")
STACK = """\
name: mini
title: A made-up engine
template: mini
arch: gfx1100
python: "3.12"
source:
  repository: {url}
  ref: refs/heads/main
  native: [csrc]
pin: {{variable: SETUPTOOLS_SCM_PRETEND_VERSION, distribution: smoke-engine}}
bases:
  build: {{bootstrap: {{suite: trixie}}}}
  runtime: {{bootstrap: {{suite: trixie}}}}
series: mini
expect: {{package: smoke_engine, modules: [smoke_engine.verify]}}
"""
PROFILE = """\
name: mini
title: A profile
stack: mini
command: [--host, 0.0.0.0, --max-model-len, "4096", --kv, copy_b128]
environment: {SMOKE_FAST: "1", OTHER: "2"}
port: 8000
gpus: 1
"""


class Upstream:
    """A branch that grows: files by path, and the commits made of them."""

    def __init__(self, folder: Path) -> None:
        self.repo = Repo(folder)
        self.files = dict(FILES)
        self.head = ""
        self.number = 0
        self.time = 1_760_000_000

    def commit(self, title="a change", *, parents=None, files=None, move=True, ref=MAIN, **changes):
        """Commit ``files`` (path to text, None to delete) and return the commit; ``move=False`` leaves the branch."""
        base = self.files if move else dict(self.files)
        for path, text in {**(files or {}), **changes}.items():
            if text is None:
                base.pop(path, None)
            else:
                base[path] = text
        self.number += 1
        self.time += 60
        above = ([self.head] if self.head else []) if parents is None else parents
        whole = {path: text if isinstance(text, bytes | tuple) else text.encode() for path, text in base.items()}
        title = title if isinstance(title, bytes) else title.encode()
        commit = self.repo.commit(
            whole, *above, title=title, time=self.time, ref=ref if move else f"refs/made/{self.number}"
        )
        if move:
            self.head = commit
        return commit

    def change(self, path, old, new, title="a change", **more):
        """Commit one replacement in one file."""
        assert old in self.files[path]
        return self.commit(title, files={path: self.files[path].replace(old, new)}, **more)

    def idle(self, title="docs"):
        """Commit something that concerns nobody."""
        return self.commit(title, files={"docs/readme.md": f"text {self.number}\n"})

    def delete(self, ref=MAIN):
        (self.repo.path / ref).unlink()


class Project:
    """A checkout with the stack ``mini`` and its series, and this machine's folders."""

    def __init__(self, folder: Path, url: str) -> None:
        self.root = folder / "checkout"
        self.home = folder / "home"
        (self.root / "stacks").mkdir(parents=True)
        (self.root / "templates").mkdir()
        (self.root / "profiles").mkdir()
        (self.root / "stacks/mini.yaml").write_text(STACK.format(url=url))
        (self.root / "profiles/mini.yaml").write_text(PROFILE)
        (self.root / "templates/Dockerfile.mini.j2").write_text("FROM scratch\nLABEL commit={{ lock.commit }}\n")
        series = self.root / "patches/mini"
        tile = {"file": "smoke_engine/launch.py", "anchor": "tile = 16", "replacement": "tile = 32"}
        store = {"file": "csrc/copy.hip", "anchor": "builtin_store(dst, v);", "replacement": "volatile_store(dst, v);"}
        patch(series, "tile.yaml", edits=[tile])
        patch(series, "store.yaml", edits=[store], id="store")
        diff(series, LIMIT, "limit.patch", id="limit")
        (series / "series").write_text("tile.yaml\nstore.yaml\nlimit.patch\n")
        self.settings = load_settings(self.root, {"HOME": str(self.home)})

    def follow(self, url: str) -> None:
        """Let the stack follow another address."""
        (self.root / "stacks/mini.yaml").write_text(STACK.format(url=url))

    def pin(self, commit: str) -> None:
        stack = load_stack(self.root, "mini")
        lock = resolve(self.root, stack, settings=self.settings, offline=True)
        write_atomic(lock_path(self.root, "mini"), at_commit(stack, lock, commit).text())

    def watch(self, *, day=0, now=None, environ=None, **options):
        """Run the watchdog, on a day after START."""
        moment = now or START + timedelta(days=day)
        chosen = Options(**{"timeout": 20.0, **options})
        return watch(
            self.root,
            "mini",
            settings=self.settings,
            options=chosen,
            environ=environ or {},
            now=moment,
            say=lambda _: None,
        )


def told(result):
    """Return the news of a run as (kind, about, commit)."""
    return [(item.kind, item.about, item.commit) for item in result.news]
