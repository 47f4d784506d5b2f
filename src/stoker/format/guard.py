"""Looking at the structure of a file whose library may abort, hang or take all memory: in a process that may die.

One helper process a process, begun at the first look and ended by the end of its input (when its parent ends, however
that comes) or when it is asked nothing for a minute. It imports the library once and forks for every file, so that a
look costs milliseconds, one file's damage cannot reach the next, and memory and CPU time have hard limits. What comes
back is JSON and nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from stoker.errors import MissingExtraError, ShardError
from stoker.format.limits import LOOK_ANSWER_BYTES_MAX, LOOK_CPU_S_MAX, LOOK_MEMORY_BYTES_MAX, LOOK_S_MAX

LOOKERS = {"hdf5": "stoker.format.hdf5_guard", "table": "stoker.format.table_guard"}
"""Kind → the module whose `look(path)` gives the structure as something JSON can hold."""
IDLE_S = 60.0
"""Seconds after which a helper that is asked nothing ends; the next look begins another."""
_HELPER = "from stoker.format.guard import serve; serve()"


class _Helper:
    """This process's end of the helper."""

    def __init__(self) -> None:
        roots = [str(Path(__file__).parent.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", _HELPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), "OMP_NUM_THREADS": "1"},
        )
        self._reaper = threading.Thread(target=self.process.wait, name="stoker-reaper", daemon=True)
        self._reaper.start()  # a helper that ended by itself stays no zombie until somebody looks

    def ask(self, kind: str, path: Path) -> dict[str, Any] | None:
        """The helper's answer; None when it is dead or silent, and then it is ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([kind, os.fsencode(path).hex()]).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = b""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.end()
        return None

    def end(self) -> None:
        """Leave nothing running."""
        self.process.kill()
        self._reaper.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes


_lock = threading.Lock()
_helpers: dict[int, _Helper] = {}
"""By process id: a forked child begins its own and leaves its parent's alone."""


def look(kind: str, path: Path, where: str) -> dict[str, Any]:
    """The structure of the file at *path*, called *where* in errors.

    ShardError when its library refuses it, or did not live through it; MissingExtraError where there is no library.
    """
    answer = None
    with _lock:
        for _ in range(2):  # the helper may have ended, or been killed: once more with a new one
            helper = _helpers.get(os.getpid()) or _helpers.setdefault(os.getpid(), _Helper())
            answer = helper.ask(kind, path)
            if answer is not None:
                break
            del _helpers[os.getpid()]
    if answer is None:
        raise ShardError(
            f"{where}: the process that looks at its structure died twice", "is the machine out of memory?"
        )
    if "missing" in answer:
        raise MissingExtraError(
            f"{where}: reading it needs the extra {kind!r}: {answer['missing']}", f"pip install 'stoker[{kind}]'"
        )
    if "error" in answer:
        raise ShardError(f"{where}: {answer['error']}", "fetch or make the file again")
    found: dict[str, Any] = answer["found"]
    return found


def stop() -> None:
    """End this process's helper; the next look begins another."""
    with _lock:
        helper = _helpers.pop(os.getpid(), None)
        if helper is not None:
            helper.end()


atexit.register(stop)


def serve() -> None:
    """The helper: answer each line of the input until its end, or until nobody has asked for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while select.select([sys.stdin.buffer], [], [], IDLE_S)[0]:
        line = sys.stdin.buffer.readline()  # one question at a time: nothing waits behind it
        if not line:
            return
        kind, name = json.loads(line)
        try:
            module = importlib.import_module(LOOKERS[kind])
            module.prepare()
        except ImportError as error:
            answer = {"missing": str(error)}
        else:
            answer = _look_in_child(module, bytes.fromhex(name))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _look_in_child(module: Any, name: bytes) -> dict[str, Any]:
    """Fork, look there, and say what came of it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(module, name, writer)
    os.close(writer)
    data = _read_all(reader)
    os.close(reader)
    if data is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if data is None:
        return {"error": f"looking at its structure took longer than {LOOK_S_MAX:g} s, or said too much"}
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return {"error": f"looking at its structure killed the reader ({signal.Signals(-code).name})"}
    try:
        answer: dict[str, Any] = json.loads(data)
    except ValueError:
        return {"error": f"looking at its structure ended the reader (exit code {code})"}
    return answer


def _read_all(reader: int) -> bytes | None:
    """What the child says, to its end; None when that is too much or takes too long.

    The limit of CPU time ends a busy child; that of each wait one that sleeps.
    """
    data = bytearray()
    while select.select([reader], [], [], LOOK_S_MAX)[0]:
        part = os.read(reader, 1 << 20)
        if not part:
            return bytes(data)
        data += part
        if len(data) > LOOK_ANSWER_BYTES_MAX:
            break
    return None


def _child(module: Any, name: bytes, writer: int) -> None:
    """Look within limits, answer, and end without cleaning up what may be damaged. Never returns."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (LOOK_MEMORY_BYTES_MAX, LOOK_MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (LOOK_CPU_S_MAX, LOOK_CPU_S_MAX + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        try:
            answer = {"found": module.look(Path(os.fsdecode(name)))}
        except module.FAILURES as error:
            answer = {"error": " ".join(str(error).split())[:2000]}
        with open(writer, "wb") as out:
            out.write(json.dumps(answer).encode())
        code = 0
    finally:
        os._exit(code)
