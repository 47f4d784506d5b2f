"""Batches of samples of like length: which samples stand in which batch of an epoch, planned for all ranks at once.

Every sample belongs to a bucket by its length, and a bucket has a batch size of its own, so that a batch holds about as
many tokens as any other. How many batches a bucket gives does not depend on the shuffle, so every epoch has the same
number, and every rank of any world size the same number of steps: batches are dealt out in turn. Each epoch permutes
the samples of each bucket, and then the batches, in runs of one bucket: ranks that step together mostly work on batches
of the same bucket, and wait for none longer than their own.
"""

from __future__ import annotations

import hashlib

import numpy as np

from stoker.errors import UsageError
from stoker.order.sequence import Mode
from stoker.order.shuffle import Int64Array, derive_key, permutation

RUN = 64
"""Batches of one bucket that follow each other: as many ranks stay together."""


class BucketedOrder:
    """The batches of an epoch. `samples` counts batches: a position is a batch that was consumed."""

    def __init__(
        self, lengths: Int64Array, bounds: tuple[int, ...], sizes: tuple[int, ...], *, seed: int, mode: Mode
    ) -> None:
        """*lengths* int64 [samples]; *bounds* of the buckets, the longest that each takes; *sizes* of their batches.

        UsageError when a sample is longer than the last bound, or no bucket fills a batch.
        """
        if len(lengths) and int(lengths.max()) > bounds[-1]:
            at = int(lengths.argmax())
            raise UsageError(
                f"sample {at} has length {int(lengths[at])}, the last bucket takes up to {bounds[-1]}",
                "add a bound, or cut the samples",
            )
        if mode not in ("full", "none"):
            raise UsageError(f"buckets are shuffled 'full' or not at all, found {mode!r}")
        bucket = np.searchsorted(np.array(bounds), lengths, side="left").astype(np.uint32)
        self._bucket = bucket
        self._members = np.argsort(bucket, kind="stable")
        """The samples bucket by bucket."""
        self._counts = np.bincount(bucket, minlength=len(bounds))
        self._first = np.cumsum(self._counts) - self._counts
        self._sizes = np.array(sizes, np.int64)
        self._batches = self._counts // self._sizes
        self.samples = int(self._batches.sum())
        self.rows_max = int(self._sizes[self._batches > 0].max(initial=0))
        """Samples of the largest batch."""
        self.dropped = int((self._counts - self._batches * self._sizes).sum())
        """Samples of an epoch that fill no batch; others in each epoch."""
        self.mode: Mode = mode
        self._seed = seed
        self._said = f"{bounds} {sizes} {hashlib.sha256(bucket.astype('<u4').data).hexdigest()}"
        if not self.samples:
            raise UsageError(
                f"no bucket fills a batch: samples by bucket {self._counts.tolist()}, batch sizes {list(sizes)}",
                "use fewer tokens a batch, or fewer buckets",
            )
        self._runs()

    def _runs(self) -> None:
        """Cut each bucket's batches into runs, which are what is permuted."""
        runs = -(-self._batches // RUN)
        self._run_bucket = np.repeat(np.arange(len(runs)), runs)
        number = np.arange(len(self._run_bucket)) - np.repeat(np.cumsum(runs) - runs, runs)
        self._run_first = number * RUN
        self._run_length = np.minimum(RUN, self._batches[self._run_bucket] - self._run_first)
        self._shuffled: tuple[int, Int64Array, Int64Array] | None = None
        """Of the epoch last asked for: its number, the runs in their order, and where each ends."""

    @property
    def described(self) -> str:
        """What else decides the order, for the plan's hash."""
        return self._said

    def batches(self, epoch: int, numbers: Int64Array) -> list[Int64Array]:
        """The samples int64 [batch] of the batches *numbers* int64 [n] of *epoch*."""
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.samples:
            raise UsageError(f"batches run from 0 to {self.samples - 1}, found others")
        order, ends = self._order_of_runs(epoch)
        place = np.searchsorted(ends, numbers, side="right")
        run = order[place]
        inside = numbers - (ends - self._run_length[order])[place] + self._run_first[run]
        found: list[Int64Array] = [numbers] * len(numbers)
        buckets = self._run_bucket[run]
        for bucket in np.unique(buckets).tolist():
            mine = np.flatnonzero(buckets == bucket)
            for at, batch in zip(mine.tolist(), self._batches_of(epoch, bucket, inside[mine]), strict=True):
                found[at] = batch
        return found

    def alike(self, sample: int, number: int) -> int:
        """One of the samples of *sample*'s bucket, drawn by *number*."""
        bucket = self._bucket[sample]
        return int(self._members[self._first[bucket] + number % self._counts[bucket]])

    def _order_of_runs(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        if self._shuffled is None or self._shuffled[0] != epoch:
            runs = len(self._run_bucket)
            order = np.arange(runs)
            if self.mode == "full":
                order = permutation(runs, derive_key(self._seed, epoch, "runs")).at(order)
            self._shuffled = epoch, order, np.cumsum(self._run_length[order])
        return self._shuffled[1:]

    def _batches_of(self, epoch: int, bucket: int, numbers: Int64Array) -> Int64Array:
        """The samples int64 [n, batch] of the batches *numbers* int64 [n] of a bucket."""
        size = int(self._sizes[bucket])
        places = (numbers[:, None] * size + np.arange(size, dtype=np.int64)).reshape(-1)
        if self.mode == "full":
            key = derive_key(self._seed, epoch, "bucket", bucket)
            places = permutation(int(self._counts[bucket]), key).at(places)
        found: Int64Array = self._members[self._first[bucket] + places]
        return found.reshape(-1, size)
