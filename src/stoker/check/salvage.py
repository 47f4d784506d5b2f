"""`salvage`: the whole samples of damaged shards into a new dataset, and what is lost. The source is only read.

What a shard held before is known from the index that lies beside it (stoker's own shards have one); else the findings
say what is gone as far as the format tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.check.verify import Verified, open_whole
from stoker.convert.job import write
from stoker.convert.source import Source
from stoker.dataset import Dataset
from stoker.errors import NotFoundError, ShardError, UsageError
from stoker.flow import Progress, no_progress
from stoker.index import Index, default_place
from stoker.store import Store, StoreOptions, connect
from stoker.store.atomic import scratch

LOST_TOLD_MAX = 1_000
WHOLE_SUMS = frozenset({"wrong-hash", "not-as-indexed"})
"""Codes of findings that a shard as a whole is not what it was."""
SUMMED_BY_SAMPLE = frozenset({"tfrecord"})
"""Formats that tell of every sample by itself whether it is what was written."""


@dataclass(frozen=True, slots=True)
class SalvagedShard:
    """One damaged shard."""

    shard: str
    before: int | None
    """Samples that it held; None when nothing tells."""
    after: int
    """Samples that were saved of it."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What a salvage gave."""

    url: str
    """Where the saved samples lie."""
    shards: tuple[SalvagedShard, ...]
    samples: int
    """Saved ones; 0: then nothing was written."""
    lost: tuple[str, ...]
    """"shard:key" of samples that are known to be lost, at most 1,000."""
    doubtful: tuple[str, ...] = ()
    """Shards of which samples were saved although their hash or digest is wrong and nothing says what changed: a value
    among these samples may be another than it was."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return asdict(self)


def salvage(
    url: str | Path | Sequence[str],
    dst: str | Path,
    verified: Verified,
    *,
    format: str | None = None,  # noqa: A002  # the word of the house
    cache: str | Path | None = None,
    options: StoreOptions | None = None,
    progress: Progress = no_progress,
) -> Salvaged:
    """Write the whole samples of the shards that *verified* calls damaged to *dst*, a new place, in the same format.

    UsageError for raw files (a damaged file has no whole part) and for a target that holds something.
    """
    if verified.format == "files":
        raise UsageError("raw files are not repaired: a damaged one has no whole samples", "replace the files named")
    target = connect(dst, options=options)
    if f"{target.url.rstrip('/')}/".startswith(f"{verified.url.rstrip('/')}/"):
        raise UsageError(f"the target {target.url} lies inside the dataset", "salvage into a folder beside it")
    with scratch("salvage") as folder:
        try:
            store, dataset = open_whole(url, folder, format=format, cache=cache, options=options)
        except ShardError:  # not one whole sample in the dataset
            shards = tuple(SalvagedShard(shard, None, 0) for shard in sorted(verified.damaged))
            return Salvaged(target.url, shards, 0, ())
        numbers, shards, lost = _chosen(store, dataset, verified)
        if numbers:
            write(
                Source(dataset, numbers=numbers), target, format=verified.format, progress=progress,
                advice="the writer of this format is not as able as its reader: bring the damaged shards again",
            )  # fmt: skip
    doubtful = _doubtful(verified, [one.shard for one in shards if one.after])
    return Salvaged(target.url, shards, len(numbers), lost, doubtful)


def _chosen(
    store: Store, dataset: Dataset, verified: Verified
) -> tuple[list[int], tuple[SalvagedShard, ...], tuple[str, ...]]:
    """The samples to save, the counts by shard, what is known to be lost."""
    before = _keys_before(store)
    starts, index = dataset.shard_starts.tolist(), dataset.index
    where = {index.shard_object(number).key: number for number in range(len(starts) - 1)}
    numbers: list[int] = []
    shards, lost = [], []
    for shard in sorted(verified.damaged, key=lambda key: where.get(key, -1)):
        at = where.get(shard)
        if at is None and shard not in before:
            continue  # what is damaged is no shard, but the index
        whole = [] if at is None else [
            number for number in range(starts[at], starts[at + 1]) if (shard, index.key(number)) not in verified.bad
        ]  # fmt: skip
        saved = {index.key(number) for number in whole}
        expected = before.get(shard)
        shards.append(SalvagedShard(shard, None if expected is None else len(expected), len(whole)))
        bad = [key for one, key in sorted(verified.bad) if one == shard]
        lost += [f"{shard}:{key}" for key in (bad if expected is None else expected) if key not in saved]
        numbers += whole
    return numbers, tuple(shards), tuple(lost[:LOST_TOLD_MAX])


def _doubtful(verified: Verified, saved: Sequence[str]) -> tuple[str, ...]:
    """Which of the *saved* shards are wrong as a whole, and by nothing else that was found."""
    codes: dict[str, set[str]] = {}
    for finding in verified.findings:
        if finding.severity == "error":
            for shard in saved:
                if finding.where == shard or finding.where.startswith((f"{shard}:", f"{shard}@")):
                    codes.setdefault(shard, set()).add(finding.code)
    if verified.format in SUMMED_BY_SAMPLE:
        return ()
    return tuple(shard for shard in saved if codes.get(shard) and codes[shard] <= WHOLE_SUMS)


def _keys_before(store: Store) -> dict[str, list[str]]:
    """By shard: the keys that the index beside the data says it held; nothing without a whole index."""
    try:
        index = Index.load(store, place=default_place())
        starts = index.shard_starts.tolist()
        return {
            index.shard_object(at).key: [index.key(number) for number in range(starts[at], starts[at + 1])]
            for at in range(len(starts) - 1)
        }
    except (NotFoundError, ShardError):
        return {}
