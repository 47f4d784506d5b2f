"""Photos of 1,000 pixels and more: stoker beside its rivals, as `rivals.py` compares them, images/s.

as_they_are   from the web, half of them progressive, where every scan is read from its beginning
baseline      the same, encoded anew (quality 90, baseline), where a decoder may read the crop alone

Photos: STOKER_BENCH_LARGE, a folder, else the test data's of NVIDIA/DALI_extra (CC0); those whose longer side has 1,000 pixels or
more, ten times each. STOKER_BENCH_ROUNDS, STOKER_BENCH_ONLY and STOKER_BENCH_WORKERS are as in `rivals.py`. The tables go to
stderr, one JSON line to stdout.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from rival_run import CONTENDERS, ROUNDS, chosen, compare
from rivals import BATCH, summary, table

SIDE_MIN = 1000
TIMES = 10
TARGETS = {"as_they_are": 1.4, "baseline": 1.5}


def large_photos() -> list[bytes]:
    """The photos that are large enough, once each."""
    here = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    usual = Path(os.environ.get("STOKER_TEST_DATA", str(here))) / "images" / "dali-cc0"
    folder = Path(os.environ.get("STOKER_BENCH_LARGE") or usual)
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in (".jpg", ".jpeg"):
            with Image.open(path) as photo:
                if max(photo.size) >= SIDE_MIN:
                    found.append(path.read_bytes())
    if not found:
        raise SystemExit(f"{folder}: no JPEG of {SIDE_MIN} pixels; set STOKER_BENCH_LARGE to a folder of photos")
    return found


def baseline(raw: bytes) -> bytes:
    """The photo encoded anew."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(raw)) as photo:
        photo.convert("RGB").save(out, "JPEG", quality=90, progressive=False)
    return out.getvalue()


def measured(photos: list[bytes]) -> dict[str, Any]:
    """Every contender over *photos*, and how much faster stoker is than the best of the others."""
    script = str(Path(__file__).with_name("rivals.py"))
    found = compare(script, chosen(CONTENDERS), photos * TIMES, BATCH)
    ours = found.rounds.get("stoker", [])
    results = {name: summary(rounds, ours) for name, rounds in found.rounds.items()}
    print(table(results, found.failed), file=sys.stderr)
    rates = {name: float(one["images_per_s"]) for name, one in results.items()}
    others = [rate for name, rate in rates.items() if name != "stoker"]
    best = {"times_best_rival": round(rates["stoker"] / max(others), 3)} if "stoker" in rates and others else {}
    return {**best, "results": results, "left_out": found.failed}


def main() -> None:
    """Both kinds, and the line."""
    photos = large_photos()
    kinds = {"as_they_are": photos, "baseline": [baseline(raw) for raw in photos]}
    found = {name: measured(raws) for name, raws in kinds.items()}
    setting = {"bench": "large", "photos": len(photos), "times": TIMES, "batch": BATCH, "rounds": ROUNDS}
    print(json.dumps({**setting, "targets": TARGETS, "kinds": found}))


if __name__ == "__main__":
    main()
