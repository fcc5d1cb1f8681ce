"""Programs that run in the background: started detached, known by a pid file, stopped and waited for.

``start-stop-daemon`` of dpkg does it, as in the distribution's own init scripts: it detaches, and it only ever stops a
process whose program is the expected one, so that a stale pid file harms nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.engine import packages
from builder.errors import HostError
from builder.files import locked
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_SECONDS = 90.0
STOP_SECONDS = 60
POLL_SECONDS = 0.1
LOG_LINES = 15


class Daemon:
    """A background program.

    Args:
        argv: Program (absolute path) and arguments.
        pidfile: Where its process id stands.
        log: Where its output goes.
        prefix: Words that run a command as the user that it runs as.
        scratch: A folder that goes when it is stopped.
    """

    def __init__(
        self, argv: Sequence[str], *, pidfile: Path, log: Path, prefix: Sequence[str] = (), scratch: Path | None = None
    ) -> None:
        self._argv = list(argv)
        self._pidfile = pidfile
        self._log = log
        self._remove = [*prefix, "rm", "-rf", "--one-file-system", str(scratch)] if scratch else []
        control = packages.program("start-stop-daemon")
        if control is None:
            raise HostError("start-stop-daemon is not here, which dpkg brings", hint=f"start {argv[0]} yourself")
        self._control = [*prefix, control, "--quiet", "--pidfile", str(pidfile), "--exec", argv[0]]

    def is_running(self) -> bool:
        """Whether the process of the pid file lives and is this program."""
        return run([*self._control, "--status"], timeout=STOP_SECONDS, check=False).returncode == 0

    @contextlib.contextmanager
    def shared(self, begin: Callable[[], None], *, folder: Path, keep: bool) -> Iterator[None]:
        """Have it running inside the block; the last of its users stops it, unless one of them asked to keep it.

        Users hold a shared lock, which the kernel frees when they die; so one that an interrupted run left behind is
        used by the next run and stopped by it.

        Args:
            begin: Starts it; called when it does not run.
            folder: Where the locks and the mark of ``keep`` lie.
            keep: Leave it running, for later blocks too.
        """
        folder.mkdir(parents=True, exist_ok=True)
        turn, kept = folder / "lock", folder / "kept"
        with (folder / "users").open("a") as users:
            with locked(turn):
                fcntl.flock(users, fcntl.LOCK_SH)
                if not self.is_running():
                    kept.unlink(missing_ok=True)
                    begin()
            try:
                yield
            finally:
                with locked(turn):
                    if keep:
                        kept.touch()
                    elif not kept.exists() and _is_alone(users):
                        self.stop()

    def start(self, answers: Callable[[], bool]) -> None:
        """Start it and wait until it answers.

        Args:
            answers: Asks it; called again and again until it says yes.

        Raises:
            HostError: It ended, or it does not answer in time; with the end of its log.
        """
        detach = ["--start", "--background", "--make-pidfile", "--output", str(self._log)]
        run([*self._control, *detach, "--", *self._argv[1:]], timeout=STOP_SECONDS, failure=HostError)
        deadline = time.monotonic() + START_SECONDS
        while not answers():
            alive = self._lives()
            if not alive or time.monotonic() > deadline:
                what = f"did not answer within {START_SECONDS:.0f} s" if alive else "ended at once"
                self.stop()
                raise HostError(f"{self._argv[0]} {what}; the end of {self._log}:\n{self._last_lines()}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Stop it and wait for its end; nothing happens when it does not run.

        Raises:
            HostError: It is still there afterwards.
        """
        schedule = f"TERM/{STOP_SECONDS // 2}/KILL/5"
        run(
            [*self._control, "--stop", "--oknodo", "--retry", schedule, "--remove-pidfile"],
            timeout=STOP_SECONDS + 10,
            failure=HostError,
        )
        if self._remove:
            run(self._remove, timeout=STOP_SECONDS, failure=HostError)

    def _lives(self) -> bool:
        """Whether the process is there at all; just after the start it is not the program yet."""
        try:
            told = Path("/proc", self._pidfile.read_text().strip(), "stat").read_text()
        except OSError:
            return False
        # the state stands after the name, which is in parentheses and may hold anything
        return told.rpartition(")")[2].split()[0] != "Z"

    def _last_lines(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.is_file() else ""
        return "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES:])


def _is_alone(users: IO[str]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
