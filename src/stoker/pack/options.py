"""A pack described: all that decides its bytes beside the source, checked, and comparable with an earlier run's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from stoker.errors import UsageError
from stoker.pack.source import Selection
from stoker.pack.transform import Recode

OnBad = Literal["fail", "skip"]
PREDECODE_MAX = 4_096
"""Side of a stored square: 48 MiB a picture."""
SUFFIXES = {"": ".tar", "gzip": ".tar.gz", "zstd": ".tar.zst"}


@dataclass(frozen=True, slots=True)
class Options:
    """What a pack was asked to do."""

    format: str
    shard_bytes: int | None
    shards: int | None
    selection: Selection
    recode: Recode
    transform: str
    """Name of the user's function, "" for none."""
    seed: int
    on_bad: OnBad
    compression: str

    def __post_init__(self) -> None:
        checks = (
            (
                self.format in ("webdataset", "arrays"),
                f"cannot write format {self.format!r}, webdataset can be written, and arrays with --predecode",
            ),
            (
                (self.recode.predecode is None) == (self.format != "arrays"),
                "pixels decoded for good (predecode) and the format arrays belong together",
            ),
            (
                self.recode.predecode is None or 0 < self.recode.predecode <= PREDECODE_MAX,
                f"predecode is a side of 1 to {PREDECODE_MAX} pixels, found {self.recode.predecode}",
            ),
            (
                self.recode.predecode is None or (self.recode.resize_short, self.recode.transcode) == (None, None),
                "predecode makes squares of pixels: there is nothing left to do for resize_short and transcode",
            ),
            (not self.compression or self.format != "arrays", "arrays lie in their shards as they are: no compression"),
            (
                (self.shards is None) != (self.shard_bytes is None),
                "give the size of a shard or the number of shards, not both",
            ),
            (self.shard_bytes is None or self.shard_bytes > 0, f"a shard's size is positive, found {self.shard_bytes}"),
            (self.shards is None or self.shards > 0, f"there is at least 1 shard, found {self.shards}"),
            (
                self.recode.resize_short is None or self.recode.resize_short > 0,
                f"resize_short is at least 1 pixel, found {self.recode.resize_short}",
            ),
            (0 <= self.seed < 2**64, f"a seed is an integer from 0 to 2^64-1, found {self.seed}"),
            (self.on_bad in ("fail", "skip"), f"on_bad is 'fail' or 'skip', found {self.on_bad!r}"),
            (self.compression in SUFFIXES, f"compression is '', 'gzip' or 'zstd', found {self.compression!r}"),
        )
        for holds, message in checks:
            if not holds:
                raise UsageError(message)

    @property
    def plain(self) -> bool:
        """Whether files go into shards as they are. That is Python's work, which no second thread makes faster."""
        recode = (self.recode.resize_short, self.recode.transcode, self.recode.predecode)
        return not self.transform and not self.compression and recode == (None, None, None)

    def describe(self, source_identity: str) -> dict[str, Any]:
        """Plain values that name the job: equal exactly when the output is."""
        plain = asdict(self)
        plain |= plain.pop("selection") | plain.pop("recode")
        if plain["predecode"] is None:
            del plain["predecode"]  # packs of before there was such a thing are found finished
        return plain | {
            "include": list(self.selection.include),
            "exclude": list(self.selection.exclude),
            "source": source_identity,
        }
