"""Child processes: argument lists, a stated environment, a timeout, and a tail of the output for the error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.errors import HostError, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

TAIL_LINES = 30
TAIL_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a child process left behind; ``lines`` of :func:`stream` are the last ones only."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: bytes = b"",
    check: bool = True,
    failure: type[ToolError] = ToolError,
) -> Finished:
    """Run a program to its end and capture its output.

    Args:
        argv: Program and arguments; never a shell string.
        timeout: Seconds after which the child is killed.
        cwd: Working directory.
        env: Variables that are added to this process's environment; None takes one away.
        stdin: Bytes for the child's standard input.
        check: Raise when the exit status is not zero.
        failure: The class to raise.

    Raises:
        HostError: The program is not installed.
        ToolError: ``failure``, on a timeout or (with ``check``) a non-zero status.
    """
    try:
        done = subprocess.run(
            list(argv), input=stdin, capture_output=True, timeout=timeout, cwd=cwd, env=_environment(env), check=False
        )
    except FileNotFoundError as missing:
        raise _not_there(argv, cwd) from missing
    except subprocess.TimeoutExpired as late:
        raise failure(_too_long(argv, timeout)) from late
    finished = Finished(
        argv=tuple(argv),
        returncode=done.returncode,
        stdout=done.stdout.decode(errors="replace"),
        stderr=done.stderr.decode(errors="replace"),
    )
    if check and finished.returncode != 0:
        raise failure(failed(finished))
    return finished


def stream(
    argv: Sequence[str],
    *,
    timeout: float,
    on_line: Callable[[str], None],
    env: Mapping[str, str | None] | None = None,
) -> Finished:
    """Run a program and hand over each line (stdout and stderr in one order) as it comes.

    Returns:
        The end of it, whatever the status; ``stdout`` holds the last lines.

    Raises:
        HostError: The program is not installed.
        ToolError: The timeout passed.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(env),
        )
    except FileNotFoundError as missing:
        raise _not_there(argv, None) from missing
    late = threading.Event()

    def give_up() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(timeout, give_up)
    timer.start()
    try:
        with child:
            for raw in child.stdout or ():
                line = raw.decode(errors="replace").rstrip("\r\n")
                tail.append(line)
                on_line(line)
    except BaseException:
        child.kill()
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise ToolError(_too_long(argv, timeout))
    return Finished(argv=tuple(argv), returncode=child.returncode, stdout="\n".join(tail), stderr="")


@dataclass(kw_only=True)
class Pipes:
    """A running child's binary ends; ``returncode`` and ``stderr`` (its end) are set when the block is left."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    returncode: int = -1
    stderr: str = ""


@contextlib.contextmanager
def piped(
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    failure: type[ToolError] = ToolError,
) -> Iterator[Pipes]:
    """Run a program for the length of a block, which writes to it and reads from it in bytes.

    The child has a session of its own: it can ask nothing on the terminal, and it ends with all its children,
    on the timeout or when the block raises.

    Yields:
        The ends; whoever writes much while the child answers does it from a thread.

    Raises:
        HostError: The program is not installed.
        ToolError: ``failure``: the timeout passed, whatever the block made of the output that broke off.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env=_environment(env),
                start_new_session=True,
            )
        except FileNotFoundError as missing:
            raise _not_there(argv, cwd) from missing
        assert child.stdin is not None  # noqa: S101 - for the type checker
        assert child.stdout is not None  # noqa: S101 - likewise
        pipes = Pipes(stdin=child.stdin, stdout=child.stdout)
        late = threading.Event()

        def give_up() -> None:
            late.set()
            _kill_session(child.pid)

        timer = threading.Timer(timeout, give_up)
        timer.start()
        try:
            yield pipes
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.stdout.close()
            pipes.returncode = child.wait()
        except BaseException as trouble:
            _kill_session(child.pid)
            child.wait()
            if late.is_set() and isinstance(trouble, Exception):
                raise failure(_too_long(argv, timeout)) from trouble
            raise
        finally:
            timer.cancel()
            for end in (child.stdin, child.stdout):
                with contextlib.suppress(BrokenPipeError):
                    end.close()
        if late.is_set():
            raise failure(_too_long(argv, timeout))
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL_BYTES))
        pipes.stderr = errors.read().decode(errors="replace")


def shown(argv: Sequence[str]) -> str:
    """Return a command line for a message: the program's own name and at most 200 characters of arguments."""
    text = " ".join((Path(argv[0]).name, *argv[1:]))
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004 - the bound is the docstring's


def failed(finished: Finished) -> str:
    """Return the sentence for a child that failed: command, status, last lines of its output."""
    lines = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-TAIL_LINES:]
    return "\n".join([f"`{shown(finished.argv)}` ended with status {finished.returncode}", *lines])


def _not_there(argv: Sequence[str], cwd: Path | None) -> ToolError:
    if cwd is not None and not cwd.is_dir():
        return ToolError(f"the folder {cwd} is not there, so `{shown(argv)}` cannot run in it")
    return HostError(f"the program {argv[0]} is not installed", hint=f"install {Path(argv[0]).name} and try again")


def _too_long(argv: Sequence[str], timeout: float) -> str:
    return f"`{shown(argv)}` did not end within {timeout:.0f} s and was killed"


def _kill_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _environment(added: Mapping[str, str | None] | None) -> dict[str, str] | None:
    if added is None:
        return None
    return {name: value for name, value in {**os.environ, **added}.items() if value is not None}
