"""Runs contenders in turn, each round of each in a fresh process, and gathers what they measured.

A bench that uses it is its own child: `bench.py prepare NAME FOLDER BATCH` lays the photos out, `bench.py round NAME FOLDER BATCH`
measures and leaves `round.json`. The children run in `.venv-bench` when `make bench-env` has made it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rival_kit import Epoch

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "5"))
CONTENDERS = ("stoker", "pillow", "torchvision", "webdataset", "mds", "litdata", "dali", "spdl")
PATIENCE_S = 600
"""A child that is not through by then is ended, and named."""


@dataclass(slots=True)
class Compared:
    """What the rounds of every contender gave, and why some gave nothing."""

    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def source_photos(count: int) -> tuple[list[bytes], int]:
    """*count* photos from STOKER_BENCH_PHOTOS, else from the ImageNet samples of the test data, repeated where there are fewer;
    and how many differ."""
    data = os.environ.get("STOKER_TEST_DATA", str(ROOT.parent / "shared" / "data"))
    folder = Path(os.environ.get("STOKER_BENCH_PHOTOS") or Path(data) / "images" / "imagenet-sample")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:count]
    if not files:
        raise SystemExit(f"{folder}: no JPEGs; set STOKER_BENCH_PHOTOS to a folder of photos")
    raws = [path.read_bytes() for path in files]
    return [raws[number % len(raws)] for number in range(count)], len(raws)


def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    """STOKER_BENCH_ONLY, as `stoker,dali`, or all *names*."""
    only = os.environ.get("STOKER_BENCH_ONLY")
    return tuple(name for name in names if only is None or name in only.split(","))


def compare(script: str, names: tuple[str, ...], photos: list[bytes], batch: int) -> Compared:
    """ROUNDS rounds of *script* for each of *names*, interleaved; a contender that fails once is left out from there on."""
    found = Compared()
    with tempfile.TemporaryDirectory(prefix="stoker-rivals-") as folder:
        source = Path(folder) / "photos"
        source.mkdir()
        for number, raw in enumerate(photos):
            (source / f"{number:06d}").write_bytes(raw)
        for role, times in (("prepare", 1), ("round", ROUNDS)):
            for number in range(times):
                for name in names:
                    if name not in found.failed:
                        print(f"{role} {number + 1}/{times} {name}", file=sys.stderr, flush=True)
                        run_child(found, script, role, name, Path(folder) / name, batch)
    return found


def run_child(found: Compared, script: str, role: str, name: str, folder: Path, batch: int) -> None:
    """One role of one contender in a process, whose session is ended whatever became of it; what it measured joins *found*."""
    bench_python = ROOT / ".venv-bench" / "bin" / "python"
    python = str(bench_python) if bench_python.exists() else sys.executable
    command = [python, script, role, name, str(folder), str(batch)]
    result = folder / "round.json"
    result.unlink(missing_ok=True)
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words, start_new_session=True)
        end = f"not through after {PATIENCE_S} s"
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                end = f"ended with {process.wait(PATIENCE_S)}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        words.seek(0)
        told = [line.strip() for line in words if line.strip()] or ["no word"]
    error = next((line for line in reversed(told) if re.match(r"[\w.]+(Error|Exception)\b", line)), told[-1])
    if not result.exists():
        found.failed[name] = f"{role}: {end}: {error}"
        return
    if role == "round":
        found.rounds.setdefault(name, []).append(json.loads(result.read_text()))


def child(measure: Callable[[Epoch, int], dict[str, Any]]) -> None:
    """The child's side: does the role that the command line names."""
    role, name, folder, batch = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    module = importlib.import_module(f"rival_{name}")
    photos = [path.read_bytes() for path in sorted((folder.parent / "photos").iterdir())] if role == "prepare" else []
    epoch: Epoch = module.prepare(photos, folder, batch)
    result: dict[str, Any] = {}
    if role == "round":
        result = measure(epoch, batch)
        result["versions"] = {package: importlib.metadata.version(package) for package in module.PACKAGES}
    (folder / "round.json").write_text(json.dumps(result))
