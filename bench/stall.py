"""How long training waits at the design's rule: a consumer that takes 1/1.2 of what its loader was just seen to supply.

A round is a fresh process: a warm epoch, three at full speed (the supply, seams included), then six in which every batch of 64 is
followed by a step of 1.2 / supply, ±10 % at random. Epochs are short, 16 batches, so that seams count; one photo in a hundred has
ten times the pixels. The step sleeps, as a trainer does that waits for its GPU: both cores are the loader's.

wait        share of the time after those epochs' first batch that was spent in `next()`
seam        the part of it between an epoch's last batch and the next epoch's first
supply      images/s
others      share of all cores that processes of others took from the supply's measuring on; more than some hundredths, and the wait
            says more about them: a supply measured while nobody else worked is not there afterwards

Rounds (STOKER_BENCH_ROUNDS, 5) are interleaved, values are medians. Photos, STOKER_BENCH_ONLY and STOKER_BENCH_WORKERS are as in
`rivals.py`. The table goes to stderr, one JSON line to stdout.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import sys
import time
from typing import Any

from PIL import Image
from rival_kit import WORKERS, Epoch
from rival_run import CONTENDERS, ROUNDS, child, chosen, compare, source_photos
from rivals import idle_shares, taken_by_others, tree_cpu_s

BATCH = 64
STEPS = 16
EPOCHS = 6
SUPPLY_EPOCHS = 3
RULE = 1.2
JITTER = 0.1
SLOW_EVERY = 100
SLOW_PIXELS = 10
KEYS = ("wait", "seam", "supply", "others")


def slowed(raw: bytes) -> bytes:
    """The photo with ten times the pixels."""
    with Image.open(io.BytesIO(raw)) as photo:
        side = SLOW_PIXELS**0.5
        large = photo.convert("RGB").resize((round(photo.width * side), round(photo.height * side)))
    out = io.BytesIO()
    large.save(out, "JPEG", quality=90)
    return out.getvalue()


def measure(epoch: Epoch, batch: int) -> dict[str, Any]:
    """One round, in this process."""
    for _ in epoch():
        pass
    idle_shares()
    begun, cpu = time.perf_counter(), tree_cpu_s()
    supply = sum(sum(epoch()) for _ in range(SUPPLY_EPOCHS)) / (time.perf_counter() - begun)
    jitter = random.Random(1)
    waits: list[tuple[float, bool]] = []
    """Every wait, and whether it was at a seam."""
    first_at = 0.0
    for _ in range(EPOCHS):
        batches, left, seam = epoch(), True, True
        while left:
            asked = time.perf_counter()
            size = next(batches, 0)
            now = time.perf_counter()
            left = size > 0
            if first_at:
                waits.append((now - asked, seam or not left))
            first_at = first_at or now
            seam = False
            if left:
                time.sleep(max(0.0, jitter.gauss(1, JITTER)) * RULE * size / supply)
    end = time.perf_counter()
    wall = end - first_at
    return {
        "wait": sum(wait for wait, _ in waits) / wall,
        "seam": sum(wait for wait, seam in waits if seam) / wall,
        "supply": supply,
        "others": taken_by_others(idle_shares(), tree_cpu_s() - cpu, end - begun),
    }


def main() -> None:
    """All rounds, the table, the line."""
    photos, differing = source_photos(BATCH * STEPS)
    photos = [slowed(raw) if number % SLOW_EVERY == 0 else raw for number, raw in enumerate(photos)]
    found = compare(__file__, chosen(CONTENDERS), photos, BATCH)
    results = {
        name: {key: round(statistics.median(one[key] for one in rounds), 4) for key in KEYS}
        | {"rounds": [round(one["wait"], 4) for one in rounds], "versions": rounds[0]["versions"]}
        for name, rounds in found.rounds.items()
    }
    print(
        f"{STEPS} batches of {BATCH} an epoch ({differing} differing photos), {WORKERS} workers, supply = {RULE} × demand",
        file=sys.stderr,
    )
    print(f"{'':<12}{'wait':>9}{'seam':>9}{'supply':>9}{'others':>9}", file=sys.stderr)
    for name, row in results.items():
        print(
            f"{name:<12}{row['wait']:>9.2%}{row['seam']:>9.2%}{row['supply']:>9.0f}{row['others']:>9.2f}",
            file=sys.stderr,
        )
    for name, reason in found.failed.items():
        print(f"{name:<12}  left out. {reason}", file=sys.stderr)
    setting = {
        "bench": "stall",
        "batch": BATCH,
        "steps": STEPS,
        "epochs": EPOCHS,
        "rule": RULE,
        "workers": WORKERS,
        "rounds": ROUNDS,
    }
    print(json.dumps({**setting, "differing_photos": differing, "results": results, "left_out": found.failed}))


if __name__ == "__main__":
    child(measure) if len(sys.argv) > 1 else main()
