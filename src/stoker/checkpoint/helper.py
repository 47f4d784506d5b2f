"""The trainer's side of a background process: start it before the first step, notice its death, start it again.

A process that died takes nothing with it: staged state lies in the trainer's memory, the rest on disk.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stoker
from stoker.errors import CheckpointError, reason_of
from stoker.wire import Waiter, pair, receive, send

STOP_S_MAX = 2.0


class Helper:
    """A background process of this one in a role of `worker`."""

    def __init__(self, role: str) -> None:
        self.role = role
        try:
            self.link, self._process, self._waiter = _started(role)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint process (role {role}) cannot be started: {reason_of(error)}",
                "see `ulimit -n` and `ulimit -u`: it needs descriptors and a process",
            ) from error
        self._end = weakref.finalize(self, _end, self.link, self._process, self._waiter, os.getpid())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send it a message. EOFError when it is dead."""
        try:
            send(self.link, message, tuple(descriptors))
        except OSError as error:
            raise EOFError(str(error)) from error

    def hear(self, timeout_s: float) -> tuple[str, Any] | None:
        """Its next message, or None at the timeout. EOFError when it is dead and left none."""
        if not self._waiter.wait(timeout_s):
            return None
        try:
            message, _ = receive(self.link)
        except OSError as error:
            raise EOFError(f"a message was lost: {reason_of(error)}") from error
        return message  # type: ignore[no-any-return]  # the wire carries our own pairs

    def last_words(self) -> str:
        """How it ended, once it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S_MAX)
        code = self._process.returncode
        how = "closed its connection" if code is None else f"ended with code {code}"
        return f"the checkpoint process (role {self.role}, pid {self.pid}) {how}"

    def close(self) -> None:
        """End it, whatever it does just now."""
        self._end()


def _started(role: str) -> tuple[socket.socket, subprocess.Popen[bytes], Waiter]:
    """Our end, the process, and what waits for either; nothing is left of it when the system refuses a part."""
    with contextlib.ExitStack() as undo:
        ours, theirs = pair("stoker.Checkpointer")
        undo.callback(ours.close)
        roots = [str(Path(stoker.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            command = [sys.executable, "-P", "-m", "stoker.checkpoint.worker", role, str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), "OMP_NUM_THREADS": "1"},
            )
        undo.callback(process.wait)
        undo.callback(process.kill)
        waiter = Waiter(ours, process.pid)
        undo.pop_all()
    return ours, process, waiter


def _end(link: socket.socket, process: subprocess.Popen[bytes], waiter: Waiter, owner: int) -> None:
    """Also the finalizer: at garbage collection and interpreter exit, but not in forked children."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        link.close()
    with contextlib.suppress(ProcessLookupError):
        process.kill()  # what it leaves half done has no marker
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:  # in a system call on a hung disk: it dies when that returns
        process.returncode = -signal.SIGKILL  # else subprocess warns of a child that nobody waits for
    waiter.close()
