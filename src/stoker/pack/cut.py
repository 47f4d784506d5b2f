"""What goes where: the order of the samples, the shard that each belongs to, the key that it gets. Pure.

All of it is decided before the first byte is read, from names and sizes alone: so it is the same for any number of
workers, and a packer that was killed decides the same again. A transform may change sizes; the cut stays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

from stoker.errors import UsageError

TAR_BLOCK = 512
_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""What no file name on this machine can decode to; a transform can give it."""


def shuffled(keys: Sequence[str], seed: int) -> list[int]:
    """Sample numbers in the order of a keyed hash of their names: one file more moves no other sample far."""
    secret = seed.to_bytes(8, "little")
    ranks = [hashlib.blake2b(_bytes(key), digest_size=8, key=secret).digest() for key in keys]
    return sorted(range(len(keys)), key=lambda number: (ranks[number], number))


def tar_bytes(sizes: Iterable[int]) -> int:
    """Bytes that files of these sizes take in a tar: each a header and its content, in whole blocks."""
    return sum(TAR_BLOCK - -size // TAR_BLOCK * TAR_BLOCK for size in sizes)


def cut_by_size(sizes: Sequence[int], *, shard_bytes: int) -> list[int]:
    """Bounds [shards + 1] of shards of at most *shard_bytes*; a larger sample has a shard of its own."""
    ends = np.cumsum(np.asarray(sizes, np.int64))
    bounds = [0]
    while bounds[-1] < len(ends):
        start = bounds[-1]
        before = int(ends[start - 1]) if start else 0
        bounds.append(max(start + 1, int(np.searchsorted(ends, before + shard_bytes, side="right"))))
    return bounds


def cut_by_count(sizes: Sequence[int], *, shards: int) -> list[int]:
    """Bounds [shards + 1] of *shards* shards of about the same bytes, each with a sample or more."""
    samples = len(sizes)
    if not 1 <= shards <= samples:
        raise UsageError(f"{samples} samples make from 1 to {samples} shards, found {shards}")
    ends = np.cumsum(np.asarray(sizes, np.int64))
    bounds = [0]
    for number in range(1, shards):
        wanted = int(np.searchsorted(ends, ends[-1] * number / shards, side="left")) + 1
        bounds.append(min(max(wanted, bounds[-1] + 1), samples - shards + number))
    return [*bounds, samples]


def clean_key(key: str) -> str:
    """*key* with "_" for every dot and undecodable byte. A shard's readers end the key at its first dot."""
    key = _NO_TEXT.sub("_", key)
    readable = key.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\ufffd", "_")
    return readable.replace(".", "_").replace("\0", "_").strip("/") or "_"


def unique_key(key: str, taken: set[str]) -> str:
    """*key*, or *key* with the first number that makes it new; adds it to *taken*."""
    found, number = key, 1
    while found in taken:
        found, number = f"{key}_{number}", number + 1
    taken.add(found)
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
