"""A cold epoch over a store that is 50 or 200 ms away: stoker beside bare parallel ranged GETs of the same bytes, in one run.

The store is a real S3 gateway behind a wire (`link.py`) that delays what is asked and caps all answers
together at STOKER_BENCH_LINK (40) MB/s: the link is the limit, not these cores, and what counts is how much of it is used.
192 MB in six shards of 100 kB samples, which are not decoded.

bare          8 MiB ranges, 16 at once, by obstore
stream        `stoker.Loader` without a cache, shuffled over a window of shards
cache         the same through an empty cache, which keeps the shards
first_batch   seconds from `iter()` to the first batch, of a loader made 2 s before
share         bytes/s of the samples over bytes/s of bare, from the making of the loader, whose feeder starts and reads before `iter()`,
              to the last batch

Rounds (STOKER_BENCH_ROUNDS, 3) are interleaved; values are medians. The table goes to stderr, one JSON line to stdout.
"""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from link import link

import stoker
from stoker.cli.servers import Server, juicefs_gateway
from stoker.store import ByteRange, connect

SHARDS, SAMPLES, SAMPLE_BYTES = 6, 320, 100_000
BATCH = 32
ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "3"))
LINK_BYTES_PER_S = float(os.environ.get("STOKER_BENCH_LINK", "40")) * 1e6
LATENCIES_S = (0.05, 0.2)
AT_ONCE = 16
PIECE_BYTES = 8 << 20
BUCKET = "bench"


def fill(url: str) -> list[tuple[str, int]]:
    """Put the shards there, with their index; gives keys and sizes."""
    store, random, made = connect(url), np.random.default_rng(0), []
    for shard in range(SHARDS):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for number in range(SAMPLES):
                member = tarfile.TarInfo(f"{shard:02d}{number:06d}.bin")
                member.size = SAMPLE_BYTES
                tar.addfile(member, io.BytesIO(random.bytes(SAMPLE_BYTES)))
        key = f"shard_{shard:05d}.tar"
        store.put(key, out.getvalue())
        made.append((key, len(out.getvalue())))
    return made


def bare(url: str, shards: list[tuple[str, int]]) -> float:
    """Bytes/s of fetching every shard in pieces."""
    store = connect(url)
    pieces = [
        (key, ByteRange(start, min(start + PIECE_BYTES, size)))
        for key, size in shards
        for start in range(0, size, PIECE_BYTES)
    ]
    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        total = sum(pool.map(lambda one: len(store.get_ranges(one[0], [one[1]])[0]), pieces))
    return total / (time.perf_counter() - begun)


def loaded(url: str, cache: Path | None) -> dict[str, float]:
    """One cold epoch by the loader."""
    dataset = stoker.open(url, cache=None if cache is None else stoker.Cache(cache, limit="1GB"))
    made = time.perf_counter()
    with stoker.Loader(dataset, BATCH, seed=1, fields={"bin": bytes}, shuffle=stoker.Window(shards=2)) as loader:
        time.sleep(2)
        begun = time.perf_counter()
        first = total = 0.0
        for batch in loader:
            first = first or time.perf_counter() - begun
            total += sum(map(len, batch["bin"]))
        spent = time.perf_counter() - made
        if os.environ.get("STOKER_BENCH_REPORT"):
            print(loader.report(), file=sys.stderr)
    return {"rate": total / spent, "first_batch": first}


def measure(server: Server, latency_s: float, shards: list[tuple[str, int]], folder: Path) -> dict[str, Any]:
    """All rounds at one latency."""
    rounds: list[dict[str, float]] = []
    with link(server.port, latency_s, LINK_BYTES_PER_S) as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        url = f"s3://{BUCKET}/cold"
        for number in range(ROUNDS):
            found = {"bare": bare(url, shards)}
            for name, cache in (("stream", None), ("cache", folder / f"cache-{latency_s}-{number}")):
                got = loaded(url, cache)
                found |= {f"{name}_share": got["rate"] / found["bare"], f"{name}_first_batch": got["first_batch"]}
            rounds.append(found)
            print(json.dumps({"latency_s": latency_s, **found}), file=sys.stderr, flush=True)
    return {name: round(statistics.median(one[name] for one in rounds), 4) for name in rounds[0]}


def main() -> None:
    """The gateway, both latencies, the line."""
    with tempfile.TemporaryDirectory(prefix="stoker-cold-") as place, juicefs_gateway(Path(place) / "s3") as server:
        server.make_bucket(BUCKET)
        os.environ.update(server.environment())
        os.environ["XDG_CACHE_HOME"] = str(Path(place) / "home")
        shards = fill(f"s3://{BUCKET}/cold")
        stoker.open(f"s3://{BUCKET}/cold")  # the index is made once, without the delay
        results = {latency_s: measure(server, latency_s, shards, Path(place)) for latency_s in LATENCIES_S}
    print(json.dumps({"bench": "cold", "link_bytes_per_s": LINK_BYTES_PER_S, "rounds": ROUNDS, "results": results}))


if __name__ == "__main__":
    main()
