"""What a person does from a checkout: ``nox -s NAME [-- ARGUMENTS]``; everything else is the program ``gfx1100``."""

from __future__ import annotations

import nox

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True

PROJECT = nox.project.load_toml("pyproject.toml")
TEST, LINT = (nox.project.dependency_groups(PROJECT, group) for group in ("test", "lint"))


def program(session: nox.Session, *arguments: str) -> None:
    """Install the program into the session and run it; what stands after ``--`` is passed on."""
    session.install("--quiet", "--editable", ".")
    session.run("gfx1100", *arguments, *session.posargs)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Build, verify, publish, pull, serve and prompt the smoke stack, and print its chain."""
    program(session, "quickstart")


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests: unit tests first, then those on a real container engine (installed when it is missing)."""
    session.install("--quiet", "--editable", ".", *TEST)
    session.run("coverage", "erase")
    session.run("coverage", "run", "--parallel-mode", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report", *([] if session.posargs else ["--fail-under=90"]))


@nox.session
def unit(session: nox.Session) -> None:
    """Run the unit tests alone: no engine, no network, under 30 seconds."""
    session.install("--quiet", "--editable", ".", *TEST)
    session.run("pytest", "tests/unit", *session.posargs)


@nox.session(name="build-smoke")
def build_smoke(session: nox.Session) -> None:
    """Build and verify the smoke image."""
    program(session, "build", "smoke")


@nox.session(name="build-vllm")
def build_vllm(session: nox.Session) -> None:
    """Build and verify the vLLM image; ``-- --rehearse`` does it on a base from distribution packages."""
    program(session, "build", "vllm")


@nox.session(name="build-sglang")
def build_sglang(session: nox.Session) -> None:
    """Build and verify the SGLang image; ``-- --rehearse`` does it on a base from distribution packages."""
    program(session, "build", "sglang")


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve a stack into its lock: ``nox -s lock -- smoke --update``."""
    program(session, "lock")


@nox.session
def render(session: nox.Session) -> None:
    """Render all Dockerfiles; ``-- --check`` shows what is stale."""
    program(session, "render", "--all")


@nox.session
def kernels(session: nox.Session) -> None:
    """Compile a stack's kernels before and after its series, without a GPU: ``nox -s kernels -- smoke``."""
    program(session, "kernels", *([] if session.posargs else ["smoke", "--install"]))


@nox.session
def watchdog(session: nox.Session) -> None:
    """Compare the upstream of every stack with its pin, side by side: ``nox -s watchdog -- --once``."""
    # 10: there are new commits, and the series fits them
    session.install("--quiet", "--editable", ".")
    session.run("gfx1100", "watch", "--all", *session.posargs, success_codes=[0, 10])


@nox.session
def pull(session: nox.Session) -> None:
    """Pull the newest image of a stack, or a named one, and check it: ``nox -s pull -- STACK|REF``."""
    program(session, "pull")


@nox.session
def serve(session: nox.Session) -> None:
    """Serve a profile: ``nox -s serve -- smoke``."""
    program(session, "serve")


@nox.session
def doctor(session: nox.Session) -> None:
    """Say whether this GPU host is fit: ``nox -s doctor -- --profile vllm-int8-128k``."""
    program(session, "doctor")


@nox.session(name="fix-checkpoint")
def fix_checkpoint(session: nox.Session) -> None:
    """Rewrite a checkpoint's MTP rules in a sibling folder: ``nox -s fix-checkpoint -- DIR``."""
    program(session, "checkpoint", "fix")


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, style, Dockerfiles, shell, YAML and workflows."""
    session.install("--quiet", "--editable", ".", *LINT)
    session.run("ruff", "format", "--check")
    session.run("ruff", "check")
    session.run("gfx1100", "render", "--all", "--check")
    session.run("hadolint", *tracked(session, "dockerfiles/*/Dockerfile"))
    session.run("shellcheck", "nox", *tracked(session, ".ci/*"))
    session.run("yamllint", "--strict", *tracked(session, "*.yaml", "*.yml"))
    session.run("actionlint")
    session.run("zizmor", "--offline", "--quiet", ".github/workflows")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types, strictly."""
    session.install("--quiet", "--editable", ".", *LINT)
    session.run("mypy")


def tracked(session: nox.Session, *patterns: str) -> list[str]:
    """Return the files of the repository that match."""
    listed = session.run("git", "ls-files", "--", *patterns, silent=True, external=True)
    return str(listed).split()
