"""Index: opening 10 million samples, warm, in a fresh process; then places at random. Prints one JSON line.

Targets: at most 50 ms to open and 30 MB of private memory a process, 10 µs a place. Medians of several processes.
Private memory is what the process holds beyond an interpreter that has imported the index and opened nothing; mapped
pages are shared by all processes of a node and count for none of them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stoker.format import FieldPlace, SampleEntry
from stoker.index import IndexWriter, ObjectRef
from stoker.store import Local

SAMPLES = 10_000_000
SHARDS = 10_000
PROCESSES = 7
LIMITS = {"open_s": 0.050, "private_bytes": 30e6, "place_s": 10e-6}

OPEN = """
import gc, json, random, sys, time
from pathlib import Path
from stoker.index import Index

def anonymous_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))

gc.collect()
before = anonymous_bytes()
start, cpu = time.perf_counter(), time.process_time()
index = Index(Path(sys.argv[1]))
count = len(index)
open_s, open_cpu_s = time.perf_counter() - start, time.process_time() - cpu
opened = anonymous_bytes() - before
rng = random.Random(1)
samples = [rng.randrange(count) for _ in range(20_000)]
for sample in range(0, count, 65_536):
    index.place(sample, "jpg")
start = time.perf_counter()
for sample in samples:
    index.place(sample, "image")
place_s = (time.perf_counter() - start) / len(samples)
print(json.dumps({"open_s": open_s, "open_cpu_s": open_cpu_s, "private_bytes": opened,
                  "private_bytes_all_touched": anonymous_bytes() - before, "place_s": place_s}))
"""


def write(folder: Path, samples: int) -> float:
    """Write an index of synthetic samples with two fields and a label each; seconds."""
    start = time.perf_counter()
    each = samples // SHARDS
    with IndexWriter(Local(folder), "index", format="webdataset", columns={"cls": int}, scratch=folder) as writer:
        for shard in range(SHARDS):
            ref = ObjectRef(f"shard_{shard:05d}.tar", each * 120_000, None, expanded_size=each * 120_000)
            entries = (
                SampleEntry(
                    f"{shard:05d}/{n:06d}",
                    (FieldPlace("jpg", n * 110_000 + 512, 100_000), FieldPlace("cls", n * 110_000 + 101_376, 3)),
                    {"cls": n % 1000},
                )
                for n in range(each)
            )
            writer.add_shard(ref, entries)
        writer.commit()
    return time.perf_counter() - start


def main() -> None:
    """Write once, open in several processes."""
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES
    with tempfile.TemporaryDirectory() as folder:
        write_s = write(Path(folder), samples)
        index = Path(folder) / "index"
        size = sum(path.stat().st_size for path in index.iterdir())
        runs = []
        for _ in range(PROCESSES):
            done = subprocess.run([sys.executable, "-c", OPEN, str(index)], capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout))
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print(
        json.dumps(
            {
                "bench": "index",
                "samples": samples,
                "bytes": size,
                "write_s": round(write_s, 1),
                **{name: float(f"{value:.4g}") for name, value in found.items()},
                "of_limit": {name: round(found[name] / limit, 3) for name, limit in LIMITS.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
