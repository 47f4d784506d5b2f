"""The rivals of a cold epoch: what all of them read, and a round of one, which is a process of its own.

Each `rival_cold_<name>.py` has `PACKAGES`, `PREFIX` (where in the bucket its samples lie) and

    prepare(folder: Path) -> None                                                    its own shards, where it has a format of its own
    cold(url: str, cache: Path, batch: int) -> Callable[[], Iterable[list[bytes]]]   what makes its loader

and imports its library inside `cold`, so that imports are not timed, and what is missing fails there, and only there. A rival
begins at `iter()`, so no pause is made before; two workers, as everywhere here (STOKER_BENCH_WORKERS). The samples, the size
of the shards and the wire are stoker's. Run by `cold.py`; children run in `.venv-bench`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rival_run import Compared, chosen, run_child

from stoker.store import connect

SHARDS, SAMPLES, SAMPLE_BYTES = 20, 320, 100_000
SHARD_BYTES = SAMPLES * SAMPLE_BYTES
BATCH = 32
BUCKET = "bench"
PREFIX = "cold"
"""Where the tar shards lie."""
RIVALS = chosen(("webdataset", "mds", "litdata"))


def samples(shard: int) -> Iterator[tuple[str, bytes]]:
    """Key and bytes of every sample of a shard."""
    random = np.random.default_rng(shard)
    for number in range(SAMPLES):
        yield f"{shard:02d}{number:06d}", random.bytes(SAMPLE_BYTES)


def every_sample() -> Iterator[bytes]:
    """The bytes of all samples, in order."""
    for shard in range(SHARDS):
        for _, raw in samples(shard):
            yield raw


def lay_out(found: Compared, folder: Path) -> None:
    """Let each rival write its own shards, and put them into the bucket."""
    for name in RIVALS:
        place = folder / name
        run_child(found, __file__, "prepare", name, place, BATCH)
        if name in found.failed:
            continue
        shards, store = place / "shards", connect(f"s3://{BUCKET}/{name}")
        for path in sorted(path for path in shards.rglob("*") if path.is_file()):
            store.put(str(path.relative_to(shards)), path.read_bytes())
        shutil.rmtree(place)


def cold_round(found: Compared, name: str, folder: Path) -> dict[str, Any] | None:
    """One cold epoch of a rival in an empty folder; None for one that failed, now or before."""
    if name not in found.failed:
        run_child(found, __file__, "round", name, folder, BATCH)
        shutil.rmtree(folder)
    return None if name in found.failed else found.rounds[name][-1]


def measure(module: Any, cache: Path) -> dict[str, Any]:
    """The epoch, from the making of the loader on."""
    make = module.cold(f"s3://{BUCKET}/{module.PREFIX}", cache, BATCH)
    begun = time.perf_counter()
    first, total = 0.0, 0
    for batch in make():
        first = first or time.perf_counter() - begun
        total += sum(map(len, batch))
    spent = time.perf_counter() - begun
    if total != SHARDS * SHARD_BYTES:
        raise SystemExit(f"an epoch gave {total} bytes, expected {SHARDS * SHARD_BYTES}")
    versions = {package: importlib.metadata.version(package) for package in module.PACKAGES}
    return {"rate": total / spent, "first_batch": first, "versions": versions}


def child() -> None:
    """The child's side: does the role that the command line names."""
    role, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    module = importlib.import_module(f"rival_cold_{name}")
    result: dict[str, Any] = {}
    if role == "prepare":
        module.prepare(folder / "shards")
    else:
        result = measure(module, folder / "cache")
    (folder / "round.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # some leave threads and workers that nothing ends


if __name__ == "__main__":
    child()
