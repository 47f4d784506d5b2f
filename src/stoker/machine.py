"""What this machine can do and who lives on it, as values: CPUs and memory of the cgroup, processes and boots.

Surprising: in a container `os.cpu_count()` and `/proc/meminfo` tell of the host. The cgroup's quota and limit decide
what a job may use, and passing the memory limit is a kill -9 without a message.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def _cgroup_file(name: str) -> str | None:
    """Text of a file of this process's cgroup (v2), or None where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    relative = next((line[3:] for line in lines if line.startswith("0::")), "/")
    for folder in (_CGROUP / relative.lstrip("/"), _CGROUP):
        try:
            return (folder / name).read_text().strip()
        except OSError:
            continue
    return None


def cpus() -> int:
    """CPUs this process may use: affinity mask, cut to the cgroup's quota, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = (_cgroup_file("cpu.max") or "max").split()
    if quota[0] != "max":
        allowed = min(allowed, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, allowed)


def memory_bytes_free() -> int:
    """Bytes that can still be used: the machine's available memory, cut to what the cgroup's limit leaves."""
    free = int(psutil.virtual_memory().available)
    limit, used = _cgroup_file("memory.max"), _cgroup_file("memory.current")
    if limit is not None and limit != "max" and used is not None:
        free = min(free, max(0, int(limit) - int(used)))
    return free


def give_way(nice: int) -> None:
    """Never preempt the training process: batch scheduling, which wakes up behind others, and a lower priority."""
    with contextlib.suppress(PermissionError):  # a container may forbid it; then the run is only a little less smooth
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.nice(nice)


def run_delay_s() -> float:
    """Seconds that this thread was ready to run and had no CPU, so far; 0 where the kernel does not count them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def oom_kills() -> int | None:
    """How many processes of this cgroup the kernel killed for memory so far; None where it does not say."""
    for line in (_cgroup_file("memory.events") or "").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return None


def scratch_folder() -> str:
    """Where temporary files go: TMPDIR, else /tmp, /var/tmp, the working folder: the first that can be written.

    `tempfile.gettempdir` finds out by making a file and deleting it again; a kill in between leaves that file.
    """
    candidates = (os.environ.get("TMPDIR"), os.environ.get("TEMP"), "/tmp", "/var/tmp")
    return next((folder for folder in candidates if folder and os.access(folder, os.W_OK | os.X_OK)), str(Path.cwd()))


def boot_id() -> str:
    """Changes at every boot: with a pid and its start time it names a process for ever."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def process_start(pid: int) -> int | None:
    """Clock ticks from boot to the start of *pid*; None when no such process lives (zombies count as dead)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def owner_token() -> str:
    """Names the calling process across reboots and pid reuse: "boot/pid/start"."""
    return f"{boot_id()}/{os.getpid()}/{process_start(os.getpid())}"


def owner_lives(token: str) -> bool:
    """Whether the process of an `owner_token` still runs on this machine."""
    boot, _, rest = token.partition("/")
    pid, _, start = rest.partition("/")
    if boot != boot_id() or not pid.isdigit():
        return False
    return str(process_start(int(pid))) == start
