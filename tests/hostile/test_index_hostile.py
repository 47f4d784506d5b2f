"""Damaged index files give errors or values, never a crash: read in a process of its own, because Arrow is C++."""

from __future__ import annotations

import json
import random
from pathlib import Path

from support_format import run_limited, small_index

FLIPS = 150

READ_ALL = """
import json, pathlib, sys
import numpy as np
from stoker.errors import StokerError
from stoker.index import Index
# LIMIT HERE
folder = pathlib.Path(sys.argv[1])
originals = {name: (folder / name).read_bytes() for name in ("index.arrow", "shards.arrow", "manifest.json")}
counts = {"errors": 0, "read": 0}
for name, flips in json.loads(sys.argv[2]):
    data = bytearray(originals[name])
    for at, bit in flips:
        data[at % len(data)] ^= 1 << bit
    (folder / name).unlink()
    (folder / name).write_bytes(data)
    try:
        index = Index(folder)
        for sample in range(len(index)):
            index.key(sample), index.field_names(sample), index.place(sample, "image"), index.place(sample, "cls")
            [index.value(sample, column) for column in index.columns]
        list(index.objects()), list(index.objects(np.arange(len(index)))), [index.shard(n) for n in range(3)]
        counts["read"] += 1
    except StokerError:
        counts["errors"] += 1
    finally:
        (folder / name).unlink()
        (folder / name).write_bytes(originals[name])
print(json.dumps(counts))
"""


def test_turned_bytes_never_crash(tmp_path: Path) -> None:
    """Bits turned over anywhere in the three files end in an error of ours or in values."""
    index = small_index(tmp_path)
    rng = random.Random(11)
    plan = [
        (name, [(rng.randrange(1 << 30), rng.randrange(8)) for _ in range(rng.choice((1, 1, 4)))])
        for name in ("index.arrow", "shards.arrow", "manifest.json")
        for _ in range(FLIPS)
    ]
    done = run_limited(READ_ALL, str(index.folder), json.dumps(plan), memory_bytes=1 << 30, seconds=120)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts["errors"] + counts["read"] == 3 * FLIPS
    assert counts["errors"] > FLIPS // 2
