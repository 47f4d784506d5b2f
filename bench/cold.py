"""A cold epoch over a store that is 50 or 200 ms away: stoker and its rivals beside bare parallel ranged GETs of the
same bytes, in one run.

The store is a real S3 gateway behind a wire (`link.py`) that delays what is asked and caps all answers
together at STOKER_BENCH_LINK (40) MB/s: the link is the limit, not these cores, and what counts is how much of it is used.
640 MB in twenty shards of 100 kB samples, which are not decoded.

bare          8 MiB ranges, 16 at once, by obstore
stream        `stoker.Loader` without a cache, shuffled over a window of shards
cache         the same through an empty cache, which keeps the shards
webdataset, mds, litdata: the same samples from the same gateway over the same wire, as their documents recommend for S3, each round
              in a fresh process and with an empty folder (`rival_cold_run.py`); STOKER_BENCH_ONLY=mds runs that one alone
first_batch   seconds from `iter()` to the first batch, of a loader made 2 s before; a rival's is made just then, since it begins at `iter()`
share         bytes/s of the samples over bytes/s of bare, from the making of the loader, whose feeder starts and reads before `iter()`,
              to the last batch

Rounds (STOKER_BENCH_ROUNDS, 5; two at 200 ms) are interleaved; values are medians. The table goes to stderr, one JSON line to stdout.
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

from link import link
from rival_cold_run import BATCH, BUCKET, PREFIX, RIVALS, SHARDS, cold_round, lay_out, samples
from rival_run import ROUNDS, Compared

import stoker
from stoker.cli.servers import Server, juicefs_gateway
from stoker.store import ByteRange, connect

LINK_BYTES_PER_S = float(os.environ.get("STOKER_BENCH_LINK", "40")) * 1e6
ROUNDS_AT = {0.05: ROUNDS, 0.2: min(ROUNDS, 2)}
"""By the store's distance in seconds; the far one has no target."""
AT_ONCE = 16
PIECE_BYTES = 8 << 20


def fill(url: str) -> list[tuple[str, int]]:
    """Put the shards there, with their index; gives keys and sizes."""
    store, made = connect(url), []
    for shard in range(SHARDS):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for sample, raw in samples(shard):
                member = tarfile.TarInfo(f"{sample}.bin")
                member.size = len(raw)
                tar.addfile(member, io.BytesIO(raw))
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


def measure(
    server: Server, latency_s: float, shards: list[tuple[str, int]], rivals: Compared, folder: Path
) -> dict[str, Any]:
    """All rounds at one latency."""
    rounds: list[dict[str, float]] = []
    with link(server.port, latency_s, LINK_BYTES_PER_S) as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        url = f"s3://{BUCKET}/{PREFIX}"
        for number in range(ROUNDS_AT[latency_s]):
            each = f"{latency_s}-{number}"
            found = {"bare": bare(url, shards)}
            ways: dict[str, dict[str, Any] | None] = {
                "stream": loaded(url, None),
                "cache": loaded(url, folder / f"cache-{each}"),
            }
            ways |= {name: cold_round(rivals, name, folder / f"{name}-{each}") for name in RIVALS}
            for name, got in ways.items():
                if got is not None:
                    found |= {f"{name}_share": got["rate"] / found["bare"], f"{name}_first_batch": got["first_batch"]}
            rounds.append(found)
            print(json.dumps({"latency_s": latency_s, **found}), file=sys.stderr, flush=True)
    names = {name: None for one in rounds for name in one}
    return {name: round(statistics.median(one[name] for one in rounds if name in one), 4) for name in names}


def main() -> None:
    """The gateway, both latencies, the line."""
    rivals = Compared()
    with tempfile.TemporaryDirectory(prefix="stoker-cold-") as place, juicefs_gateway(Path(place) / "s3") as server:
        server.make_bucket(BUCKET)
        os.environ.update(server.environment())
        os.environ["XDG_CACHE_HOME"] = str(Path(place) / "home")
        shards = fill(f"s3://{BUCKET}/{PREFIX}")
        stoker.open(f"s3://{BUCKET}/{PREFIX}")  # the index is made once, without the delay
        lay_out(rivals, Path(place))
        results = {latency_s: measure(server, latency_s, shards, rivals, Path(place)) for latency_s in ROUNDS_AT}
    versions = {name: at for rounds in rivals.rounds.values() for name, at in rounds[0]["versions"].items()}
    setting = {"bench": "cold", "link_bytes_per_s": LINK_BYTES_PER_S, "rounds": ROUNDS, "versions": versions}
    print(json.dumps({**setting, "results": results, "left_out": rivals.failed}))


if __name__ == "__main__":
    main()
