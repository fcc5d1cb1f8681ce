"""A scripted upstream of 60 days and 400 commits with what happens to real ones planted in it, watched every day.

``python tests/watch/two_months.py`` prints the table of docs/watchdog.md.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from source_repos import MAIN
from watch_project import COPY, FILES, LAUNCH, Project, Upstream, told

DAYS = 60
COMMITS = 400
QUIET = {2, 7, 14, 22, 31, 32, 46, 49, 50}
UNREACHABLE = 36
Expected = list[tuple[str, str, str | None]]


@dataclass
class Day:
    """What a day was to tell and what it told."""

    day: int
    commits: int
    planted: str
    expected: Expected
    told: Expected
    exit_expected: int
    exit_code: int


@dataclass
class Script:
    """The upstream, what is planted in it, and what must be told of it."""

    folder: Path
    days: list[Day] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.up = Upstream(self.folder / "up.git")
        self.project = Project(self.folder, f"file://{self.folder}/up.git")
        self.project.pin(self.up.commit("the beginning"))
        self.made = 0
        self.untold = 0
        self.heads: dict[int, str] = {}
        self.broken: set[str] = set()
        self.rewritten = self.gone = False
        self.up.repo.point("refs/heads/another", self.up.head)
        self.random = random.Random(1100)
        self.plan: dict[int, Callable[[], tuple[str, Expected]]] = {
            5: self.tile_drifts,
            9: self.tile_returns,
            12: self.store_arrives_upstream,
            15: self.torch_moves,
            18: self.a_merge_breaks_limit,
            21: self.a_flag_is_renamed,
            24: self.the_file_of_tile_moves,
            27: self.the_branch_is_rewritten,
            29: self.limit_returns,
            31: self.the_branch_goes,
            33: self.the_branch_comes_back,
            38: self.store_leaves_upstream,
            40: self.the_file_of_tile_returns,
            43: self.a_break_is_reverted_on_the_same_day,
            44: self.a_variable_and_an_op_go,
            45: self.they_and_the_flag_return,
            50: self.the_pin_caught_up,
            52: self.torch_moves_again,
            54: self.two_patches_break,
            57: self.a_module_goes,
            59: self.one_commit_mends_both,
        }

    def run(self) -> list[Day]:
        """Live through the days."""
        fillers = self._fillers()
        for day in range(1, DAYS + 1):
            before = self.made
            first = fillers[day] // 2
            for _ in range(first):
                self._filler()
            planted, expected = self.plan.get(day, lambda: ("", []))()
            for _ in range(fillers[day] - first):
                self._filler()
            self.heads[day] = self.up.head
            self.days.append(self._watched(day, self.made - before, planted, expected))
        return self.days

    def _watched(self, day: int, made: int, planted: str, expected: Expected) -> Day:
        self.untold += made
        project, away = self.project, self.up.repo.path.with_name("away")
        if day == UNREACHABLE:
            self.up.repo.path.rename(away)
            result = project.watch(day=day)
            away.rename(self.up.repo.path)
            return Day(day, made, "upstream cannot be reached", [], told(result), 4, result.exit_code)
        options = {"bump": True, "min_age": timedelta(hours=20)} if day in {48, 49} else {}
        result = project.watch(day=day, **options)
        # the head is known only when all of a day's commits are made
        expected = [(kind, about, self.up.head if commit == "head" else commit) for kind, about, commit in expected]
        kinds = {kind for kind, _, _ in expected}
        if self.untold and not kinds & {"rewritten", "gone"}:
            expected.append(("commits", str(self.untold), self.up.head))
        self.untold = 0
        code = 11 if self.broken or self.rewritten or self.gone else 10
        if day in {48, 49}:
            planted, code = "the pin follows (`--bump`)", 0
        elif day == 50 or self.up.head == self.heads.get(0):
            code = 0
        self.rewritten = False
        return Day(day, made, planted, sorted(expected, key=str), sorted(told(result), key=str), code, result.exit_code)

    def _fillers(self) -> dict[int, int]:
        # the planted commits: one each, but for these
        planted = sum({18: 3, 31: 0, 33: 0, 43: 2, 50: 0, 54: 2}.get(day, 1) for day in self.plan)
        busy = [day for day in range(1, DAYS + 1) if day not in QUIET]
        chosen = [self.random.choice(busy) for _ in range(COMMITS - planted)]
        return {day: chosen.count(day) for day in range(1, DAYS + 1)}

    def _filler(self) -> None:
        """Commit something that changes no outcome, now and then in a file that is watched."""
        self.made += 1
        path = self.random.choice([*FILES, "docs/readme.md", "docs/readme.md"])
        if path not in self.up.files or path.endswith(".txt"):
            self.up.idle()
            return
        mark = "//" if path.endswith((".hip", ".cpp")) else "#"
        self.up.commit("more", files={path: self.up.files[path] + f"{mark} {self.up.number}\n"})

    def _change(self, path: str, old: str, new: str, title: str) -> str:
        self.made += 1
        return self.up.change(path, old, new, title)

    def tile_drifts(self):
        self.broken.add("tile")
        commit = self._change("smoke_engine/launch.py", "tile = 16", "tile = pick(queries)", "pick the tile")
        return "the anchor of `tile` is rewritten", [("broken", "tile", commit)]

    def tile_returns(self):
        self.broken.remove("tile")
        self._change("smoke_engine/launch.py", "tile = pick(queries)", "tile = 16", "back to one tile")
        return "and comes back", [("mended", "tile", "head")]

    def store_arrives_upstream(self):
        self._change("csrc/copy.hip", "builtin_store", "volatile_store", "a store that compiles")
        return "upstream takes over `store`", [("present", "store", "head")]

    def torch_moves(self):
        self.made += 1
        text = self.up.files["requirements/common.txt"].replace("2.11.0", "2.12.0")
        cmake = self.up.files["CMakeLists.txt"].replace("2.11.0", "2.12.0")
        self.up.commit("torch 2.12", files={"requirements/common.txt": text, "CMakeLists.txt": cmake})
        names = ("torch", "TORCH_SUPPORTED_VERSION_ROCM")
        return "torch moves in two files", [("change", name, "head") for name in names]

    def a_merge_breaks_limit(self):
        self.made += 3
        self.broken.add("limit")
        path, start = "smoke_engine/defaults.py", self.up.head
        text = self.up.files[path].replace("MAX_TOKENS = 16", "MAX_TOKENS = 16 * SCALE")
        side = self.up.commit("beside: idle", parents=[start], move=False, files={"README.md": "beside\n"})
        guilty = self.up.commit(
            "beside: scale the limit", parents=[side], move=False, files={"README.md": "beside\n", path: text}
        )
        self.up.commit("Merge beside", parents=[start, guilty], files={"README.md": "beside\n", path: text})
        return "a commit beside the branch breaks `limit`, a merge brings it", [("broken", "limit", guilty)]

    def a_flag_is_renamed(self):
        self._change("smoke_engine/server.py", '"--max-model-len"', '"--max-model-length"', "spell it out")
        return "a serve flag is renamed", [("change", "--max-model-len", "head")]

    def the_file_of_tile_moves(self):
        self.made += 1
        self.broken.add("tile")
        text = self.up.files["smoke_engine/launch.py"]
        files = {"smoke_engine/launch.py": None, "smoke_engine/launcher.py": text}
        return "the file of `tile` moves", [("broken", "tile", self.up.commit("tidy up", files=files))]

    def the_branch_is_rewritten(self):
        self.made += 1
        self.rewritten = True
        self.up.head = self.heads[25]
        self.up.commit("the last two days in one commit")
        return "force push: two days become one commit", [("rewritten", MAIN, "head")]

    def limit_returns(self):
        self.broken.remove("limit")
        self._change("smoke_engine/defaults.py", " * SCALE", "", "no scale")
        return "`limit` fits again", [("mended", "limit", "head")]

    def the_branch_goes(self):
        self.gone = True
        self.up.delete()
        return "the branch is deleted", [("gone", MAIN, None)]

    def the_branch_comes_back(self):
        self.gone = False
        self.up.repo.point(MAIN, self.up.head)
        return "and pushed again", [("back", MAIN, "head")]

    def store_leaves_upstream(self):
        self._change("csrc/copy.hip", "volatile_store", "builtin_store", 'Revert "a store that compiles"')
        return "upstream reverts its `store`", [("needed", "store", "head")]

    def the_file_of_tile_returns(self):
        self.made += 1
        self.broken.remove("tile")
        self.up.commit("untidy", files={"smoke_engine/launch.py": LAUNCH, "smoke_engine/launcher.py": None})
        return "the file of `tile` is back", [("mended", "tile", "head")]

    def a_break_is_reverted_on_the_same_day(self):
        self._change("csrc/copy.hip", "builtin_store", "other_store", "try a store")
        self._change("csrc/copy.hip", "other_store", "builtin_store", 'Revert "try a store"')
        return "a break, reverted before the run", []

    def a_variable_and_an_op_go(self):
        self.made += 1
        server = self.up.files["smoke_engine/server.py"].replace("SMOKE_FAST", "FAST")
        ops = self.up.files["csrc/torch_bindings.cpp"].replace('"copy_b128(', '"copy_all(')
        self.up.commit("names", files={"smoke_engine/server.py": server, "csrc/torch_bindings.cpp": ops})
        return "a variable and an op go", [("change", name, "head") for name in ("SMOKE_FAST", "copy_b128")]

    def they_and_the_flag_return(self):
        self.made += 1
        server = self.up.files["smoke_engine/server.py"]
        server = server.replace("FAST", "SMOKE_FAST").replace("--max-model-length", "--max-model-len")
        ops = self.up.files["csrc/torch_bindings.cpp"].replace('"copy_all(', '"copy_b128(')
        self.up.commit("names again", files={"smoke_engine/server.py": server, "csrc/torch_bindings.cpp": ops})
        names = ("SMOKE_FAST", "copy_b128", "--max-model-len")
        return "they and the flag return", [("change", name, "head") for name in names]

    def the_pin_caught_up(self):
        return "the pin is the head", [("caught up", MAIN, "head")]

    def torch_moves_again(self):
        self._change("requirements/common.txt", "2.12.0", "2.13.0", "torch 2.13")
        return "torch moves again", [("change", "torch", "head")]

    def two_patches_break(self):
        self.broken |= {"store", "limit"}
        first = self._change(
            "csrc/copy.hip", "builtin_store(dst, v);", "builtin_store(dst, v, 0);", "one more argument"
        )
        second = self._change("smoke_engine/defaults.py", "# a request", "# requests", "plural")
        return "two commits break two patches", [("broken", "store", first), ("broken", "limit", second)]

    def a_module_goes(self):
        self.made += 1
        self.up.commit("one file less", files={"smoke_engine/verify.py": None})
        return "a module that the stack expects goes", [("change", "smoke_engine.verify", "head")]

    def one_commit_mends_both(self):
        self.made += 1
        self.broken.clear()
        defaults = self.up.files["smoke_engine/defaults.py"].replace("# requests", "# a request")
        self.up.commit("as it was", files={"csrc/copy.hip": COPY, "smoke_engine/defaults.py": defaults})
        return "one commit mends both", [("mended", "store", "head"), ("mended", "limit", "head")]


def table(days: list[Day]) -> str:
    """Return the days on which something was planted, and what was told, as Markdown."""
    lines = ["| day | commits | planted | told | exit code |", "|---|---|---|---|---|"]
    for day in days:
        news = [
            f"{kind} `{about}`" + (f" by `{commit[:12]}`" if kind == "broken" and commit else "")
            for kind, about, commit in day.told
            if kind != "commits"
        ]
        if day.planted:
            lines.append(f"| {day.day} | {day.commits} | {day.planted} | {', '.join(news) or '-'} | {day.exit_code} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        script = Script(Path(name))
        sys.stdout.write(table(script.run()))
        sys.stdout.write(f"{script.made} commits\n")
        for wrong in script.days:
            if (wrong.told, wrong.exit_code) != (wrong.expected, wrong.exit_expected):
                sys.stdout.write(f"{wrong}\n")
