"""`inspect`: what a dataset is made of, from its index, a few samples, and the labels. It reads little and writes
nothing into the dataset; the index of one that has none is built as `open` builds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stoker.check.shuffle import ShuffleQuality, shuffle_quality
from stoker.convert.same import size_of
from stoker.dataset import Dataset
from stoker.dataset import open as open_dataset
from stoker.decode import default_for
from stoker.errors import SampleError
from stoker.flow import Progress, no_progress
from stoker.format.names import printable
from stoker.store import StoreOptions
from stoker.units import format_bytes

LOOKED_AT = 16
"""Samples read to say what the fields hold, spread over the dataset."""
LABEL_BLOCKS, LABEL_BLOCK = 64, 64
"""Blocks of consecutive samples whose labels are read where the index does not hold them."""
LABELS_MAX = 1_000_000
"""So many labels of an index are taken whole; of more, blocks that are spread over it."""
LABEL_FIELDS = ("label", "cls")
LABELS_SHOWN = 20
SHARD_BYTES_SMALL, SHARD_BYTES_LARGE = 16 * 10**6, 4 * 10**9
SHARDS_FEW = 8


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """One stored field."""

    name: str
    kind: str
    """What it holds, by its codec or by the samples looked at."""
    samples: int
    """How many have it."""
    bytes_min: int
    bytes_median: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that makes training slow or wrong."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a dataset is made of."""

    url: str
    format: str
    samples: int
    shards: int
    shard_bytes: int
    shard_sizes: tuple[tuple[int, int, int], ...]
    """Histogram: (bytes from, bytes below, shards), by powers of two."""
    fields: tuple[FieldSummary, ...]
    columns: tuple[str, ...]
    classes: int | None
    """How many labels have names."""
    labels: tuple[tuple[str, int], ...]
    """The most common labels with their samples; of those looked at where the index does not hold them."""
    shuffle: ShuffleQuality | None
    warnings: tuple[Warned, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return asdict(self)


def inspect(
    url: str | Path | Sequence[str],
    *,
    format: str | None = None,  # noqa: A002  # the word of the house
    label: str | None = None,
    cache: str | Path | None = None,
    options: StoreOptions | None = None,
    progress: Progress = no_progress,
) -> Inspected:
    """Describe the dataset at *url*; remote shards of rows (HDF5, tables) go through a *cache*.

    Raises what `stoker.open` raises.
    """
    dataset = open_dataset(url, format=format, label=label, cache=cache, options=options, progress=progress)
    index = dataset.index
    sizes = np.array([index.shard_object(number).size for number in range(index.manifest.shards)], np.int64)
    fields = tuple(_field(dataset, name, values) for name, values in _looked_at(dataset).items())
    blocks = _labels(dataset)
    counts = Counter(label for block in blocks for label in block)
    shuffle = shuffle_quality(blocks)
    return Inspected(
        dataset.url, index.format, len(dataset), len(sizes), int(sizes.sum()), _histogram(sizes), fields,
        index.columns, None if dataset.classes is None else len(dataset.classes),
        tuple(counts.most_common(LABELS_SHOWN)), shuffle, tuple(_warnings(dataset, sizes, fields, shuffle)),
    )  # fmt: skip


def _spread(total: int, count: int) -> list[int]:
    """At most *count* numbers below *total*, evenly."""
    return sorted({total * at // count for at in range(count)}) if total else []


def _looked_at(dataset: Dataset) -> dict[str, list[Any]]:
    """By stored field: the values of a few samples."""
    names = dataset.index.fields
    raw = dataset.reader(names).read(_spread(len(dataset), LOOKED_AT))
    return {name: [values[name] for values in raw.values if name in values] for name in names}


def _field(dataset: Dataset, name: str, values: Sequence[Any]) -> FieldSummary:
    lengths, codecs = dataset.index.field_lengths(name)
    lengths = lengths[lengths > 0]
    if not lengths.size:  # rows have no bytes of their own: those of the samples looked at stand for all
        found = [size_of(value) for value in values]
        lengths = np.array(found or [0], np.int64)
    kinds = sorted({codec for codec in codecs if codec}) or sorted({kind_of(name, value) for value in values})
    return FieldSummary(
        name, " or ".join(kinds[:4]) + (" …" if len(kinds) > 4 else ""), dataset.index.manifest.fields[name],
        int(lengths.min()), int(np.median(lengths)), int(lengths.max()),
    )  # fmt: skip


def kind_of(name: str, value: Any) -> str:
    """What a raw value holds, in a few words."""
    if isinstance(value, bytes | memoryview):
        decoder = default_for(name)
        if decoder == default_for(""):
            return "bytes"
        try:
            value = decoder.decode(value, None, 0)
        except SampleError:
            return f"bytes, undecodable as {type(decoder).__name__.lower()}"
        if isinstance(value, np.ndarray) and value.ndim == 3 and type(decoder).__name__ == "Image":
            return "image"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of {value.ndim} dimension{'s' if value.ndim != 1 else ''}"
    if isinstance(value, np.generic):
        return str(value.dtype)
    return "undecodable" if isinstance(value, SampleError) else type(value).__name__


def _blocks(total: int, count: int, size: int) -> list[tuple[int, int]]:
    """[start, stop) of at most *count* blocks of at most *size* samples, evenly."""
    starts = _spread(total, min(count, -(-total // size)))
    return [(start, min(start + size, stop)) for start, stop in pairwise([*starts, total])]


def _labels(dataset: Dataset) -> list[list[str]]:
    """Labels of consecutive samples, in blocks: from a column of the index, else some that are read."""
    index, total = dataset.index, len(dataset)
    for name in (name for name in LABEL_FIELDS if name in index.columns):
        column = index.column(name)
        pieces = [(0, total)] if total <= LABELS_MAX else _blocks(total, 100, LABELS_MAX // 100)
        found = [column.slice(start, stop - start).to_pylist() for start, stop in pieces]
        if any(value is not None for piece in found for value in piece):
            return [[_label(value) for value in piece if value is not None] for piece in found]
    stored = next((name for name in LABEL_FIELDS if name in index.fields), None)
    if stored is None:
        return []
    reader, blocks = dataset.reader((stored,)), []
    for start, stop in _blocks(total, LABEL_BLOCKS, LABEL_BLOCK):
        values = [sample.get(stored) for sample in reader.read(range(start, stop)).values]
        blocks.append([_label(value) for value in values if value is not None and not isinstance(value, SampleError)])
    return blocks


def _label(value: Any) -> str:
    """A label fit for a line."""
    text = bytes(value).decode("utf-8", "backslashreplace") if isinstance(value, bytes | memoryview) else str(value)
    return printable(text.strip()[:80])


def _histogram(sizes: np.ndarray) -> tuple[tuple[int, int, int], ...]:
    powers = Counter(int(size).bit_length() for size in sizes)
    return tuple((1 << power - 1 if power else 0, 1 << power, powers[power]) for power in sorted(powers))


def _warnings(
    dataset: Dataset, sizes: np.ndarray, fields: Sequence[FieldSummary], shuffle: ShuffleQuality | None
) -> list[Warned]:
    found = []
    if dataset.index.format != "files":
        median, largest = int(np.median(sizes)), int(sizes.max())
        if len(sizes) > 1 and median < SHARD_BYTES_SMALL:
            found.append(
                Warned(
                    "small-shards",
                    f"half of the shards have at most {format_bytes(median)}: each costs a "
                    f"request and a file; {format_bytes(SHARD_BYTES_SMALL)} or more are better",
                )
            )
        if largest > SHARD_BYTES_LARGE:
            found.append(
                Warned(
                    "large-shards",
                    f"a shard of {format_bytes(largest)}: shards are cached and shuffled as "
                    f"a whole; {format_bytes(SHARD_BYTES_LARGE)} or less are better",
                )
            )
        if len(sizes) < SHARDS_FEW:
            found.append(Warned("few-shards", f"{len(sizes)} shards cannot be spread over many nodes and readers"))
    images = [one for one in fields if one.kind == "image"]
    whole = len(images) > 1 and sum(one.samples for one in images) == len(dataset)  # a jpg here, a png there
    for one in fields:
        if one.samples < len(dataset) and not (whole and one in images):
            missing = len(dataset) - one.samples
            found.append(Warned("missing-field", f"{missing:,} of {len(dataset):,} samples have no field {one.name!r}"))
    if shuffle is not None and shuffle.verdict in ("ordered by label", "partly ordered"):
        found.append(
            Warned(
                shuffle.verdict.replace(" ", "-"),
                f"{shuffle.equal_share:.0%} of neighbours have the same "
                f'label, {shuffle.expected_share:.0%} would in a shuffled dataset: shuffle="full" mixes it, '
                "a window of shards does not; pack it again to shuffle it",
            )
        )
    return found
