"""Runs one trial in a process of its own and watches it: a bad setting may hang, crash, leak or be killed for memory.

Bounded are the time without a sign of life, the memory that the machine may lose to the trial, and /dev/shm. When a
bound is passed, or the trial is over, the whole process group is killed: workers, fork servers and all.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from stoker import machine
from stoker.errors import StokerError, UsageError
from stoker.tune.session import end_session
from stoker.tune.settings import Setting
from stoker.tune.trial import Order, Status, Target, Trial
from stoker.units import format_bytes, format_duration

SHM = Path("/dev/shm")
LOOK_EVERY_S = 0.1
ENDING_S = 2.0
"""How long the exit code of a trial that fell silent is waited for."""
SHM_LEFT_MIN = 0.02
"""Share of /dev/shm that must stay free: a write beyond its end is a bus error in whoever writes."""
RAM_LEFT_MIN = 256 << 20
"""Bytes of memory that must stay free, whatever the limit says."""
TAIL_BYTES = 2_000

_PHASES = {
    "": "while it was imported",
    "loaded": "in the factory",
    "made": "before the first batch",
    "first": "after the first batch",
    "measured": "between two epochs",
    "again": "at its end",
}
"""Where a trial stands after each thing that it tells."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a trial may take."""

    quiet_s: float
    """Seconds without a sign of life, besides the time that it is to measure."""
    ram_bytes: int


@dataclass(slots=True)
class _Seen:
    """What a trial has told so far, and what was measured of it from outside."""

    phase: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    shm_bytes: int = 0
    ram_bytes: int = 0


def shm_free() -> int:
    """Free bytes of /dev/shm; a great many where there is none."""
    try:
        found = os.statvfs(SHM)
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize


def shm_total() -> int:
    """Bytes of /dev/shm in all."""
    try:
        found = os.statvfs(SHM)
    except OSError:
        return 1 << 62
    return found.f_blocks * found.f_frsize


def run_trial(order: Order, setting: Setting | None, bounds: Bounds) -> Trial:
    """Run *order* to its end, or to the bound that it passes. UsageError when the factory itself is at fault."""
    began = time.monotonic()
    status, message, seen = _run(order, bounds)
    kept = {name: value for name, value in seen.values.items() if name in Trial.__dataclass_fields__}
    kept["ram_bytes"] = seen.ram_bytes or kept.get("ram_bytes", 0)
    wall_s = time.monotonic() - began
    return Trial(setting, status, message, wall_s, order.seconds, shm_bytes=seen.shm_bytes, **kept)


def probe(target: Target, bounds: Bounds) -> tuple[tuple[str, ...], bool]:
    """Which knobs the factory takes, and whether its process sees a GPU. StokerError says why it cannot be had."""
    status, message, seen = _run(Order(target, {}, 0, 0, 0.0, again=False, probe=True), bounds)
    if status != "ok":
        raise StokerError(f"{target.factory}: {message}")
    return tuple(seen.values["takes"]), bool(seen.values["cuda"])


def _run(order: Order, bounds: Bounds) -> tuple[Status, str, _Seen]:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker.tune.child", str(writer)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=(writer,),
        start_new_session=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    os.close(writer)
    seen = _Seen()
    try:
        tail = _Tail(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as told:
            told.write(order.to_json().encode())
        status, message = _watch(process, reader, order, bounds, seen)
    finally:
        _kill(process)
        os.close(reader)
    if status == "crashed":
        message = f"{_ending(process.returncode)} {_PHASES[seen.phase]}{tail.last()}"
    return status, message, seen


class _Tail:
    """The last words of a trial on stderr, drained all the time, so that a factory may print as much as it likes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        self._kept: deque[bytes] = deque(maxlen=4)
        self._thread = threading.Thread(target=self._drain, daemon=True, name="stoker-tune-tail")
        self._thread.start()

    def _drain(self) -> None:
        descriptor = self._stream.fileno()
        with contextlib.suppress(OSError):
            while data := os.read(descriptor, 65_536):
                self._kept.append(data[-TAIL_BYTES:])
        self._stream.close()

    def last(self) -> str:
        """The last line that says something."""
        self._thread.join(1.0)
        text = b"".join(self._kept)[-TAIL_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; its last words: {lines[-1][:200]}" if lines else ""


def _watch(
    process: subprocess.Popen[bytes], reader: int, order: Order, bounds: Bounds, seen: _Seen
) -> tuple[Status, str]:
    """Read what the trial tells until it is done or a bound is passed."""
    free, shm, shm_least = machine.memory_bytes_free(), shm_free(), int(SHM_LEFT_MIN * shm_total())
    quiet_since, rest = time.monotonic(), b""
    while True:
        over = process.poll() is not None  # asked first: what it told before its end is read all the same
        ready, _, _ = select.select([reader], [], [], 0.0 if over else LOOK_EVERY_S)
        if over and not ready:
            return "crashed", ""
        if ready:
            data = os.read(reader, 65_536)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_S)
                return "crashed", ""
            *lines, rest = (rest + data).split(b"\n")
            quiet_since = time.monotonic()
            for line in lines:
                ended = _told(json.loads(line), order, seen)
                if ended is not None:
                    return ended
        lost, shm_used = free - machine.memory_bytes_free(), shm - shm_free()
        seen.shm_bytes = max(seen.shm_bytes, shm_used)
        if shm - shm_used < shm_least and shm_used > 0:
            return "shm", f"it filled /dev/shm: {format_bytes(shm_used)} of {format_bytes(shm)} {_PHASES[seen.phase]}"
        scarce = free - lost < RAM_LEFT_MIN
        if lost > bounds.ram_bytes or scarce:
            used = tree_bytes(process.pid)  # others may have taken it
            if used > bounds.ram_bytes or scarce:
                seen.ram_bytes = used
                why = "the machine has no more" if scarce else f"allowed are {format_bytes(bounds.ram_bytes)}"
                return "memory", f"it took {format_bytes(used)} of memory, {why}"
        quiet = time.monotonic() - quiet_since
        if quiet > bounds.quiet_s + order.seconds:
            return "hung", f"no sign of life for {format_duration(quiet)} {_PHASES[seen.phase]}"


def _told(line: dict[str, Any], order: Order, seen: _Seen) -> tuple[Status, str] | None:
    """Take in one line; how the trial ended, if it did."""
    event = line.pop("event")
    if event == "lives":
        return None
    if event == "error":
        hint = f"\nhint: {line['hint']}" if line.get("hint") else ""
        if line["usage"] and seen.phase in ("", "loaded"):
            raise UsageError(line["message"], line["hint"])
        return "failed", f"{line['message']} ({_PHASES[seen.phase]}){hint}"
    seen.values.update(line)
    if event == "empty":
        return "empty", f"{order.target.factory} gave no batch"
    if event in ("done", "probed"):
        return "ok", ""
    seen.phase = event
    return None


def tree_bytes(pid: int) -> int:
    """Proportional memory of a process and all that it started."""
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def _ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else str(-code)
        return f"killed by {name}"
    return f"it ended itself with exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the trial's whole session, workers that have sessions of their own included."""
    others = []
    with contextlib.suppress(psutil.Error):
        others = psutil.Process(process.pid).children(recursive=True)
    end_session(process.pid)
    for other in others:
        with contextlib.suppress(psutil.Error):
            other.kill()
    process.wait()
