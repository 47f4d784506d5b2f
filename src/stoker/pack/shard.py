"""Building one shard: read its samples, transform them, write it, make it appear whole, say what it holds."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from stoker.decode.pixels import size_of
from stoker.errors import ChangedError, NotFoundError, SampleError, StoreError
from stoker.flow import Gate, parallel_map
from stoker.format import ColumnValue, FieldPlace, Finding, SampleEntry, is_image
from stoker.format.limits import FILE_BYTES_MAX
from stoker.format.names import printable
from stoker.format.tar import BLOCK, RECORD
from stoker.index import ObjectRef
from stoker.machine import scratch_folder
from stoker.pack.cut import unique_key
from stoker.pack.journal import Part
from stoker.pack.output import Output, Values, stored_size
from stoker.pack.source import Source, Wanted
from stoker.pack.transform import (
    IMAGE,
    Recode,
    Sample,
    Transform,
    TransformError,
    run_transform,
    stored_sample,
    stored_value,
)
from stoker.store import HasPaths, Store, TreeDigest, innermost
from stoker.store.atomic import whole_file, write_all

WRITE_BYTES = 1 << 19
"""What goes to the file at a time, at least."""
BEHIND_BYTES_MAX = 4 << 20
"""What may wait to be written, beside the last that was given; one large file is more."""
SMALL_BYTES = 4 << 10
"""Pieces up to this size are joined: a copy is cheaper than a call."""


@dataclass(frozen=True, slots=True)
class Made:
    """A sample ready to be written."""

    key: str
    fields: Values
    columns: Mapping[str, ColumnValue]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What every shard of a job has in common."""

    source: Source
    columns: Mapping[str, type]
    recode: Recode
    transform_name: str
    transform: Transform | None
    skip_bad: bool
    output: Output
    readers: int
    """Samples of a shard that are read at once."""
    scratch: Path | None
    """Folder for shards in the making on their way to a remote store; None: the system's."""
    on_sample: Callable[[int], None]
    """Told the bytes of every sample that is done."""
    turns: Gate
    """Held while the samples of a shard are made: not while it waits for its disk."""

    def make(self, wanted: Wanted) -> list[Made] | Finding:
        """Read and transform one sample; a Finding instead when it is bad and bad ones are skipped."""
        try:
            return self._make(wanted)
        except SampleError as error:
            where = printable(_source_of(wanted.entry))
            if not self.skip_bad:
                raise SampleError(f"{self.source.files.url}: {where}: {error.message}", error.hint) from error
            code = "transform" if isinstance(error, TransformError) else "undecodable"
            return Finding(code, "warning", where, error.message)
        except StoreError as error:
            if not self.skip_bad or (_code(error) == "unreadable" and self.source.remote):  # an outage is no bad sample
                raise
            return Finding(_code(error), "warning", printable(_source_of(wanted.entry)), error.message)

    def _make(self, wanted: Wanted) -> list[Made]:
        given: Sample = {"__key__": wanted.entry.key, **self.recode.apply(self._read(wanted.entry))}
        cls = wanted.entry.columns.get("cls")
        if isinstance(cls, int):
            given.setdefault("cls", cls)
        if self.transform is None:
            return [self._made(wanted, wanted.key, self.output.encode(given), given.get("cls"))]
        name, own = self.transform_name, wanted.entry.key
        several = run_transform(name, self.transform, dict(given))
        encode = self.output.encode
        stored = [stored_sample(name, wanted.key, sample, given=own, encode=encode) for sample in several]
        return [self._made(wanted, key, fields, given.get("cls")) for key, fields in stored]

    def _read(self, entry: SampleEntry) -> dict[str, bytes]:
        """The bytes of every field. A picture is opened as far as its header."""
        fields = {}
        for place in entry.fields:
            if place.length > FILE_BYTES_MAX:
                raise SampleError(
                    f"{printable(place.object)} has {place.length} bytes, at most {FILE_BYTES_MAX} are packed"
                )
            data = self.source.read(place.object)
            if len(data) != place.length:
                raise ChangedError(f"{printable(place.object)}: listed with {place.length} bytes, found {len(data)}")
            fields[_field(place.name)] = data
        return fields

    def _made(self, wanted: Wanted, key: str, fields: Values, given: int | bytes | None) -> Made:
        """The sample with its columns. *given*: the class before any transform: a number by rule, or a file's bytes."""
        columns = dict(wanted.entry.columns)
        columns.setdefault("source", _source_of(wanted.entry))
        picture = next((name for name in fields if is_image(name)), None)
        if picture is not None:
            height, width = size_of(fields[picture])
            columns.setdefault("width", width)
            columns.setdefault("height", height)
        elif IMAGE in fields and getattr(fields[IMAGE], "ndim", 0) == 3:
            columns.setdefault("width", fields[IMAGE].shape[1])
            columns.setdefault("height", fields[IMAGE].shape[0])
        # One truth: of a field that is stored, the index's column says what is stored or nothing.
        columns |= {name: stored_value(fields[name], kind) for name, kind in self.columns.items() if name in fields}
        if given is not None and "cls" not in fields:
            columns["cls"] = None
        before = stored_value(given, int) if isinstance(given, bytes) else given
        after = stored_value(fields["cls"], int) if "cls" in fields else None
        if "label" in columns and "label" not in fields and after != before:
            columns["label"] = self._label(after)
        return Made(key, fields, columns)

    def _label(self, cls: ColumnValue) -> str | None:
        """The label of the class that a transform gave."""
        classes = self.source.dataset.classes or ()
        return classes[cls] if isinstance(cls, int) and 0 <= cls < len(classes) else None


def _field(name: str) -> str:
    """A field name that a shard can hold."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\ufffd", "_").lower()


def _source_of(entry: SampleEntry) -> str:
    """The path that a sample comes from."""
    return next((place.object for place in entry.fields if is_image(place.name)), entry.fields[0].object)


def _code(error: StoreError) -> str:
    if isinstance(error, NotFoundError):
        return "vanished"
    return "changed" if isinstance(error, ChangedError) else "unreadable"


class _Tee:
    """Writes on to an unbuffered file, many pieces at a time and no large one copied, and keeps the digest of all.

    A thread of its own does both, beside the making of the next samples: hashing and writing hold no lock of Python's.
    """

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.digest = TreeDigest()
        """That of all bytes, once `finish` has returned."""
        self._file, self._where = file, where
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stoker-write")
        self._under_way: deque[tuple[int, Future[None]]] = deque()
        """Bytes, and when they are written."""
        self._pieces: list[bytes] = []
        self._small: list[bytes] = []
        """Those behind the last of `_pieces`."""
        self._held_bytes = 0

    def __enter__(self) -> _Tee:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def write(self, data: bytes) -> int:
        """Take *data*. StoreError when what was taken before could not be written."""
        self._held_bytes += len(data)
        if len(data) <= SMALL_BYTES:
            self._small.append(data)
        else:
            self._pieces += (b"".join(self._small), data)
            self._small = []
        if self._held_bytes >= WRITE_BYTES:
            self._hand_over()
        return len(data)

    def finish(self) -> None:
        """Everything that was taken is in the file. StoreError when it cannot be."""
        self._hand_over(behind_bytes_max=0)

    def _hand_over(self, behind_bytes_max: int = BEHIND_BYTES_MAX) -> None:
        """Give what is held to the thread, and wait until it is not further behind than that."""
        pieces, held = [*self._pieces, b"".join(self._small)], self._held_bytes
        self._pieces, self._small, self._held_bytes = [], [], 0
        self._under_way.append((held, self._pool.submit(self._put, pieces, held)))
        while self._under_way and sum(count for count, _ in self._under_way) > behind_bytes_max:
            self._under_way.popleft()[1].result()

    def _put(self, pieces: list[bytes], held: int) -> None:
        for piece in pieces:
            self.digest.update(piece)
        try:
            written = os.writev(self._file.fileno(), pieces)
            if written < held:  # a full disk tells so by the next write; 2 GiB are the most of one
                write_all(self._file, memoryview(b"".join(pieces))[written:])
        except OSError as error:
            hint = "make room on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
            raise StoreError(f"{self._where}: {error.strerror}", hint) from error


def build_shard(recipe: Recipe, samples: Sequence[Wanted], *, key: str, target: Store) -> Part:
    """Make the shard *key* of *samples* in *target*, whole or not at all.

    In a folder it grows under a temporary name; on its way to a remote store it lies in a file without any.
    """
    bottom = innermost(target)
    where = f"{target.url}/{key}"
    if isinstance(bottom, HasPaths):
        kept: list[Part] = []

        def publish(temporary: Path, to: Path) -> None:
            if kept[0].shard is not None:
                temporary.replace(to)

        with whole_file(bottom.path(key), publish=publish) as growing:
            kept.append(_write(recipe, samples, growing, key, where))
        return kept[0]
    with tempfile.TemporaryFile(dir=recipe.scratch or scratch_folder(), buffering=0) as file:
        part = _write(recipe, samples, cast(BinaryIO, file), key, where)
        if part.shard is not None:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                target.put(key, view)
    return part


def _write(recipe: Recipe, samples: Sequence[Wanted], file: BinaryIO, key: str, where: str) -> Part:
    """The shard's bytes into *file*, and what they are."""
    with _Tee(file, where) as tee:
        with recipe.turns:
            entries, findings, size = _fill(recipe, samples, tee)
        tee.finish()
    if not entries:
        return Part(None, (), tuple(findings))
    compression = recipe.output.compression
    expanded = _expanded_size(entries) if compression else size
    ref = ObjectRef(key, size, None, tee.digest.hexdigest(), compression, expanded)
    return Part(ref, tuple(entries), tuple(findings))


def _fill(recipe: Recipe, samples: Sequence[Wanted], tee: _Tee) -> tuple[list[SampleEntry], list[Finding], int]:
    """Make the samples and hand them on; what they are, what was left out, and the bytes of the whole."""
    writer = recipe.output.writer(cast(BinaryIO, tee))
    entries: list[SampleEntry] = []
    findings: list[Finding] = []
    taken: set[str] = set()
    made: Iterator[list[Made] | Finding] = map(recipe.make, samples)
    if recipe.readers > 1:
        made = parallel_map(recipe.make, samples, workers=recipe.readers)
    for several in made:
        if isinstance(several, Finding):
            findings.append(several)
            recipe.on_sample(0)
            continue
        for one in several:
            unique = unique_key(one.key, taken)
            entries.append(SampleEntry(unique, writer.add(unique, one.fields), one.columns))
        recipe.on_sample(sum(stored_size(one.fields) for one in several))
    return entries, findings, writer.close() if entries else 0


def _expanded_size(entries: Sequence[SampleEntry]) -> int:
    """Bytes of the tar before compression: up to the last member's end, the end mark, filled up to a whole record."""
    places: list[FieldPlace] = [place for entry in entries for place in entry.fields]
    last = max(places, key=lambda place: (place.offset, place.length))
    end = last.offset - -last.length // BLOCK * BLOCK + 2 * BLOCK
    return -(-end // RECORD) * RECORD
