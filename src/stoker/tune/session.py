"""Ends a trial's whole session: workers, fork servers, and whatever else the loader started.

All are killed but one: Python's resource tracker, which removes the named semaphores of spawned workers from /dev/shm.
It does so when it sees that everybody who used them is gone, and then ends by itself. Killed with the rest, it would
leave them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

TRACKER = b"multiprocessing.resource_tracker"
TRACKER_S = 5.0
"""How long the tracker may take before it is killed, too."""


def members(session: int) -> list[int]:
    """The living processes of a session, this one apart; zombies are dead."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def is_tracker(pid: int) -> bool:
    """Whether that process is a resource tracker."""
    try:
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill_all(session: int) -> None:
    """Kill every member of the session but this process and the trackers; again, until none is left."""
    while doomed := [pid for pid in members(session) if not is_tracker(pid)]:
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def end_session(session: int) -> None:
    """Kill all and see the trackers off."""
    kill_all(session)
    until = time.monotonic() + TRACKER_S
    while left := members(session):
        if time.monotonic() > until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
