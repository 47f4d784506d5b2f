"""The numbers to reach, each beside what a bench measured: the rows of the table that `make bench` prints and `page.py` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Lines = dict[str, dict[str, Any]]
"""By bench, the last line that it printed."""


class Row(NamedTuple):
    """One number."""

    what: str
    value: float
    target: float
    unit: str
    """A format: `{:.2f} ×`."""
    least: bool
    """Whether *target* is the least that will do; else the most."""
    bench: str

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.value >= self.target if self.least else self.value <= self.target

    @property
    def measured(self) -> str:
        """As text."""
        return self.unit.format(self.value)

    @property
    def wanted(self) -> str:
        """As text."""
        return f"{'≥' if self.least else '≤'} {self.unit.format(self.target)}"


def rivals_of(line: dict[str, Any], key: str, *, skip: tuple[str, ...]) -> list[float]:
    """What the others reached in a bench's results."""
    return [float(one[key]) for name, one in line["results"].items() if name not in skip]


def images(line: dict[str, Any]) -> Iterator[Row]:
    """Warm image epoch, CPU time."""
    what = "image epoch, CPU an image against bare decode and resize of the same crops"
    yield Row(what, line["ratio"], 1.08, "{:.2f} ×", False, "images.py")


def rivals(line: dict[str, Any]) -> Iterator[Row]:
    """Warm image epoch, beside the rivals."""
    others = rivals_of(line, "images_per_s", skip=("stoker", "floor"))
    if others:
        times = line["results"]["stoker"]["images_per_s"] / max(others)
        yield Row("image epoch, images/s against the best rival", times, 1.4, "{:.2f} ×", True, "rivals.py")


def large(line: dict[str, Any]) -> Iterator[Row]:
    """Large photos."""
    for kind, one in line["kinds"].items():
        if "times_best_rival" in one:
            what = f"photos ≥ 1,000 px, {kind.replace('_', ' ')}, images/s against the best rival"
            yield Row(what, one["times_best_rival"], line["targets"][kind], "{:.2f} ×", True, "large.py")


def tokens(line: dict[str, Any]) -> Iterator[Row]:
    """Warm token epoch."""
    for what, key, least, unit in (
        ("a bare gather", "of_bare", 0.5, "{:.2f} ×"), ("the best rival", "times_best_rival", 8, "{:.1f} ×"),
    ):  # fmt: skip
        if key in line:
            yield Row(f"token epoch, GB/s against {what}", line[key], least, unit, True, "tokens.py")


def stall(line: dict[str, Any]) -> Iterator[Row]:
    """Waiting at the design's rule."""
    wait = 100 * line["results"]["stoker"]["wait"]
    yield Row("share of time waiting, supply = 1.2 × demand", wait, 0.5, "{:.2f} %", False, "stall.py")


def cold(line: dict[str, Any]) -> Iterator[Row]:
    """Cold epochs at every distance, both ways."""
    for latency, one in line["results"].items():
        for way, name in (("stream", "streamed"), ("cache", "through an empty cache")):
            what = f"cold epoch, store {float(latency) * 1000:.0f} ms away, {name}"
            share, first = one[f"{way}_share"], one[f"{way}_first_batch"]
            yield Row(f"{what}: bytes/s against bare GETs", share, 0.9, "{:.2f} ×", True, "cold.py")
            yield Row(f"{what}: first batch", first, 1.5, "{:.2f} s", False, "cold.py")


def checkpoint(line: dict[str, Any]) -> Iterator[Row]:
    """Saving."""
    for what, key, most in (
        ("training blocked, against memcpy of the state", "blocked / memcpy", 1.3),
        ("training blocked, against torch.save", "blocked / torch.save", 0.2),
        ("training blocked, against dcp.async_save", "blocked / async_save", 1.0),
        ("durable on the local disk, checksums included, against O_DIRECT writing", "durable / direct", 1.5),
    ):
        yield Row(f"checkpoint: {what}", line[key], most, "{:.2f} ×", False, "checkpoint.py")
    what = "checkpoint: a Python-heavy step while a save runs, against the same step alone"
    yield Row(what, line["step slower by"]["stoker"], 1.3, "{:.2f} ×", False, "checkpoint.py")


def pack(line: dict[str, Any]) -> Iterator[Row]:
    """Packing."""
    what = "pack, digests and index included, against copying with fsync"
    yield Row(what, line["ratio"], 0.7, "{:.3f} ×", True, "pack.py")


def index(line: dict[str, Any]) -> Iterator[Row]:
    """Opening a large index."""
    yield Row("index: open 10 million samples, warm", 1000 * line["open_s"], 50, "{:.1f} ms", False, "index.py")
    what = "index: private memory of a process that opened it"
    yield Row(what, line["private_bytes"] / 1e6, 30, "{:.1f} MB", False, "index.py")


def order(line: dict[str, Any]) -> Iterator[Row]:
    """A block of a very long order."""
    one, what = line["n_1e12"], "order of 10^12 samples: a block of 10^6"
    yield Row(what, one["wall_s"], 0.1, "{:.3f} s", False, "order.py")
    yield Row(f"{what}, memory", one["peak_bytes"] / 1e6, 50, "{:.0f} MB", False, "order.py")


def observe(line: dict[str, Any]) -> Iterator[Row]:
    """What watching costs."""
    what = "observe: cost of an iteration, of a step of 1 ms"
    yield Row(what, 100 * line["share_of_1ms"], 1, "{:.2f} %", False, "observe.py")


def tune(line: dict[str, Any]) -> Iterator[Row]:
    """The found setting."""
    for name, one in line["results"].items():
        what = f"tune, {name}"
        yield Row(f"{what}: rate against the full grid's best", 100 * one["found"], 95, "{:.0f} %", True, "tune.py")
        yield Row(f"{what}: time against the full grid's", 100 * one["time"], 25, "{:.0f} %", False, "tune.py")


def control(line: dict[str, Any]) -> Iterator[Row]:
    """Control while it runs, where the optimum is known."""
    for name, one in line["results"].items():
        if name in ("transform", "held"):
            what = f"online control, {name}: rate against the best static setting"
            yield Row(what, 100 * one["of_best"], 95, "{:.0f} %", True, "control.py")


ROWS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "images": images, "rivals": rivals, "large": large, "tokens": tokens, "stall": stall, "cold": cold,
    "checkpoint": checkpoint, "pack": pack, "index": index, "order": order, "observe": observe, "tune": tune,
    "control": control,
}  # fmt: skip
"""By bench, in the table's order."""


def rows(found: Lines) -> list[Row]:
    """The table, of what was measured."""
    return [row for name, of in ROWS.items() if name in found for row in of(found[name])]


def printed(table: list[Row]) -> str:
    """The table for a terminal."""
    wide = max((len(row.what) for row in table), default=0)
    lines = [
        f"{row.what:<{wide}}  {row.measured:>10}  {row.wanted:>12}  {'met' if row.met else 'MISSED'}" for row in table
    ]
    return "\n".join([*lines, f"{sum(row.met for row in table)} of {len(table)} met"])
