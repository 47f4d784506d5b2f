"""`stoker.tokens`: a column of token documents as windows of a fixed length, a dataset like any other.

A window is known by its number: which documents it takes from follows from their lengths, which the index says (tables
and HDF5 are asked once). Of a document only the elements of the window are read, be it a gigabyte long.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from blake3 import blake3

from stoker.cache import Objects, WrongDigestError
from stoker.dataset.copying import Int64Array
from stoker.dataset.dataset import Dataset, Map, checked_map
from stoker.dataset.gather import Gatherer
from stoker.dataset.read import RawSamples, SampleReader
from stoker.dataset.token_gather import TokenGatherer
from stoker.dataset.token_plan import Layout, Piece, TokenColumn, WindowPlan, Windows, layout_of, native
from stoker.errors import SampleError, UsageError
from stoker.events import SILENT, Recorder
from stoker.flow import parallel_map
from stoker.format.rows import ROW_FORMATS
from stoker.index import ObjectRef
from stoker.store import ByteRange

OPENED_AT_ONCE = 4
FIELDS = ("tokens", "document")


def tokens(
    dataset: Dataset,
    column: str = "tokens",
    *,
    length: int = 2048,
    dtype: Any = None,
    eos: int | None = None,
    windows: Windows = "concat",
) -> TokenDataset:
    """Windows of *length* tokens over the documents in *column*, in shard order.

    A sample is `tokens`, an integer array [length], and `document`, int32 [length]: 0 for tokens of the window's first
    document, 1 for the next, for attention masks. *dtype*: of the elements, where the column holds bare bytes. *eos* is
    put behind every document. *windows*: "concat" lets documents follow each other, "per_document" begins anew with
    each. What is left over at the end (of each document) is dropped: `dropped_tokens` counts it.

    Raises UsageError when the column holds no tokens, or less than a window of them.
    """
    if not isinstance(dataset, Dataset) or isinstance(dataset, TokenDataset) or not hasattr(dataset, "index"):
        raise UsageError(
            f"tokens takes a dataset of documents, found {dataset!r:.100}",
            "stoker.open(url) opens one; of a mixture, make windows of each part: stoker.Mixture of stoker.tokens(…)",
        )
    if dataset.maps:
        raise UsageError("tokens takes a dataset without maps", "map the windows: stoker.tokens(…).map(function)")
    if column not in dataset.index.fields:
        raise UsageError(
            f"no sample of {dataset.url} has a column {column!r}; there are {', '.join(dataset.index.fields)}"
        )
    length = _whole("length", length)
    eos = None if eos is None else _whole("eos", eos)
    asked = None if dtype is None else _dtype(dtype)
    if asked is not None:
        native(asked)
    layout, elements = (
        _rows(dataset, column, asked) if dataset.index.format in ROW_FORMATS else _bytes(dataset, column, asked)
    )
    made = native(layout.dtype)
    if eos is not None and not np.iinfo(made).min <= eos <= np.iinfo(made).max:
        raise UsageError(f"eos={eos} does not fit {made}, the type of the tokens")
    plan = WindowPlan(elements, length=length, eos=eos is not None, windows=windows)
    if not plan.windows:
        raise UsageError(
            f"{dataset.url}: {int(elements.sum())} tokens in {len(elements)} documents make no window of {length}"
        )
    return TokenDataset(dataset, TokenColumn(column, layout, plan, eos, windows))


def sample_lengths(dataset: Dataset, name: str) -> np.ndarray:
    """The length of every sample, int64 [samples]: the value of the metadata column *name*, or of the field *name* its
    elements where it is an array of numbers, else its bytes. UsageError where there is no such thing."""
    if isinstance(dataset, TokenDataset):
        raise UsageError("windows of tokens have one length", "a batch size does; buckets are for whole documents")
    if name in dataset.index.columns:
        values: np.ndarray = dataset.index.column(name).to_numpy()
        return values
    if name not in dataset.index.fields:
        raise UsageError(
            f"no sample of {dataset.url} has a column or field {name!r}; there are {', '.join(dataset.fields)}"
        )
    if dataset.index.format in ROW_FORMATS:
        return _rows(dataset, name, None)[1]
    try:
        return _bytes(dataset, name, None)[1]
    except UsageError:  # no numbers: text, or a file
        return dataset.index.field_lengths(name)[0]


def _whole(name: str, value: object) -> int:
    """A whole number; UsageError for what only looks like one."""
    try:
        if isinstance(value, bool | np.bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise UsageError(f"{name} is a whole number, found {value!r}") from None


def _dtype(given: Any) -> np.dtype[Any]:
    try:
        made: np.dtype[Any] = np.dtype(given)
    except TypeError as error:
        raise UsageError(f"dtype={given!r}: {error}", "name a type of NumPy's, as 'uint16'") from None
    return made


def _bytes(dataset: Dataset, column: str, dtype: np.dtype[Any] | None) -> tuple[Layout, np.ndarray]:
    """Layout and elements [documents] of a column whose documents are bytes at known places."""
    lengths, codecs = dataset.index.field_lengths(column)
    number = int(np.argmax(lengths > 0))
    place = dataset.index.place(number, column)
    first = b""
    if place is not None:
        objects = dataset.open_objects()
        try:
            head = ByteRange(place.start, place.stop if place.stop - place.start <= 1 << 20 else place.start + 16_384)
            first = bytes(objects.read(place.object, [head]).data[0])
        finally:
            objects.close()
    layout = layout_of(codecs, column, dtype, first)
    return layout, layout.elements(lengths)


def _rows(dataset: Dataset, column: str, dtype: np.dtype[Any] | None) -> tuple[Layout, np.ndarray]:
    """The same of a column whose documents are rows: each shard's file is asked."""
    objects = dataset.open_objects()
    index = dataset.index

    def lengths_of(shard: int) -> np.ndarray:
        file = ROW_FORMATS[index.format](objects.file(index.shard_object(shard)))
        try:
            return file.lengths(column)
        finally:
            file.close()

    try:
        shards = range(len(index.shard_starts) - 1)
        counts = np.concatenate([np.zeros(0, np.int64), *parallel_map(lengths_of, shards, workers=OPENED_AT_ONCE)])
    finally:
        objects.close()
    first = dataset[int(np.argmax(counts > 0))].get(column)
    if isinstance(first, bytes):
        layout = layout_of(("",), column, dtype, b"")
        return layout, layout.elements(counts)
    array = np.asarray(first)
    if array.ndim != 1 or (dtype is not None and dtype != array.dtype):
        raise UsageError(
            f"column {column!r} holds {array.dtype} of shape {array.shape}: expected rows of {dtype or 'whole numbers'}"
        )
    return Layout("raw", array.dtype), counts


class TokenDataset(Dataset):
    """Windows of tokens by number. Made by `stoker.tokens`."""

    def __init__(self, documents: Dataset, column: TokenColumn, *, maps: tuple[Map, ...] = ()) -> None:
        super().__init__(documents.store, documents.index, cache=documents.cache, maps=maps)
        self.documents = documents
        self.column = column

    def __len__(self) -> int:
        return self.column.plan.windows

    def __repr__(self) -> str:
        return f"<stoker.TokenDataset {self.url}: {len(self)} windows of {self.column.plan.length} tokens>"

    def __getstate__(self) -> dict[str, Any]:
        return {"documents": self.documents, "column": self.column, "maps": self.maps}

    @property
    def fields(self) -> tuple[str, ...]:
        return FIELDS

    @property
    def classes(self) -> tuple[str, ...] | None:
        return None

    @property
    def dropped_tokens(self) -> int:
        """Tokens behind the last whole window (of each document, with windows="per_document")."""
        return self.column.plan.dropped_tokens

    @property
    def shard_starts(self) -> np.ndarray:
        return self.column.plan.starts(self.index.shard_starts)

    def key(self, sample: int) -> str:
        first = self.column.plan.pieces(sample)[0]
        return f"{self.index.key(first.document)}@{first.start}"

    def plan_identity(self) -> str:
        return str(blake3(f"{self.index.plan_identity()}\0{self.column.said()}".encode()).hexdigest())

    def map(self, function: Map) -> TokenDataset:
        return TokenDataset(self.documents, self.column, maps=(*self.maps, checked_map(function)))

    def objects(self, samples: np.ndarray | None = None) -> Iterator[ObjectRef]:
        """Every object once, in order of first use by the windows *samples* (int64; default: as they lie)."""
        return self.index.objects(None if samples is None else self.column.plan.documents(samples))

    def reader(self, fields: tuple[str, ...] | None = None, recorder: Recorder = SILENT) -> SampleReader:
        return TokenReader(self, self.open_objects(recorder), recorder)


class TokenReader(SampleReader):
    """Reads windows. Thread-safe."""

    def __init__(self, dataset: TokenDataset, objects: Objects, recorder: Recorder) -> None:
        cached = dataset.cache is not None
        super().__init__(dataset.index, objects, fields=(dataset.column.name,), cached=cached, recorder=recorder)
        self._column = dataset.column

    def read(self, samples: Sequence[int]) -> RawSamples:
        """The windows *samples*. One that cannot be read is a SampleError in place of its values."""
        pieces = [self._column.plan.pieces(window) for window in samples]
        wanted = list(dict.fromkeys(piece for one in pieces for piece in one))
        if self._index.format in ROW_FORMATS:
            found, missed = self._from_rows(wanted)
        else:
            found, missed = self._from_bytes(wanted)
        values = [self._window([(piece, found[piece]) for piece in one]) for one in pieces]
        keys = [f"{self._index.key(one[0].document)}@{one[0].start}" for one in pieces]
        return RawSamples(keys, values, [FIELDS] * len(samples), missed=missed)

    def needs(self, samples: Int64Array) -> Iterator[tuple[Objects, ObjectRef]]:
        return super().needs(self._column.plan.documents(samples))

    def gatherer(self, names: tuple[str, ...]) -> Gatherer | None:
        if self._index.format in ROW_FORMATS or not self._index.objects_are_shards:
            return None
        return TokenGatherer(self._index, self._objects, self._column, self._recorder)

    def _window(self, parts: list[tuple[Piece, np.ndarray | SampleError]]) -> dict[str, Any]:
        """A window put together from its pieces."""
        bad = next((part for _, part in parts if isinstance(part, SampleError)), None)
        if bad is not None:
            return dict.fromkeys(FIELDS, bad)
        length = self._column.plan.length
        made = np.empty(length, native(self._column.layout.dtype))
        document = np.empty(length, np.int32)
        at = 0
        for number, (piece, part) in enumerate(parts):
            stop = at + piece.stop - piece.start
            made[at : at + len(part)] = part  # type: ignore[arg-type]  # errors are sorted out above
            if at + len(part) < stop:  # type: ignore[arg-type]  # as above
                made[stop - 1] = self._column.eos
            document[at:stop] = number
            at = stop
        return {"tokens": made, "document": document}

    def _from_rows(self, wanted: list[Piece]) -> tuple[dict[Piece, np.ndarray | SampleError], bool]:
        """The pieces out of whole rows, which the file's reader keeps for the next."""
        column = self._column
        documents = list(dict.fromkeys(piece.document for piece in wanted))
        raw = super().read(documents)
        whole = {document: raw.values[at].get(column.name) for at, document in enumerate(documents)}
        found: dict[Piece, np.ndarray | SampleError] = {}
        for piece in wanted:
            value = whole[piece.document]
            if isinstance(value, bytes):
                value = np.frombuffer(value, column.layout.dtype)
            expected = int(column.plan.elements[piece.document])
            if isinstance(value, SampleError):
                found[piece] = value
            elif not isinstance(value, np.ndarray) or value.shape != (expected,) or value.dtype != column.layout.dtype:
                said = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
                found[piece] = self._wrong(piece, f"expected {column.layout.dtype} ({expected},), found {said}")
            else:
                found[piece] = value[piece.start : min(piece.stop, expected)]
        return found, raw.missed

    def _from_bytes(self, wanted: list[Piece]) -> tuple[dict[Piece, np.ndarray | SampleError], bool]:
        """The pieces out of the ranges where they lie, each with the head of its document."""
        layout, plan = self._column.layout, self._column.plan
        by_object: dict[ObjectRef, list[tuple[Piece, list[ByteRange]]]] = {}
        for piece in wanted:
            place = self._index.place(piece.document, self._column.name)
            assert place is not None, "a document with tokens has a place"
            elements = int(plan.elements[piece.document])
            head = layout.head(elements)
            base, size = place.start + head, layout.dtype.itemsize
            data = ByteRange(base + piece.start * size, base + min(piece.stop, elements) * size)
            ranges = [ByteRange(place.start, base), data] if head else [data]
            by_object.setdefault(place.object, []).append((piece, ranges))
        found: dict[Piece, np.ndarray | SampleError] = {}
        cached_bytes = stored_bytes = 0
        asked = [(ref, [one for _, each in parts for one in each if len(one)]) for ref, parts in by_object.items()]
        for parts, read in zip(by_object.values(), self._objects.read_all(asked), strict=True):
            if isinstance(read, WrongDigestError):
                raise read
            cached_bytes += read.cached_bytes
            stored_bytes += read.stored_bytes
            answers = iter(read.data)
            for piece, ranges in parts:
                got = [next(answers) if len(one) else b"" for one in ranges]
                found[piece] = np.frombuffer(got[-1], layout.dtype)
                if len(ranges) > 1:
                    try:
                        layout.check(got[0], int(plan.elements[piece.document]))
                    except SampleError as error:
                        found[piece] = self._wrong(piece, error.message)
        self._recorder.count("read.cache_bytes", cached_bytes)
        self._recorder.count("read.store_bytes", stored_bytes)
        return found, self._cached and stored_bytes > 0

    def _wrong(self, piece: Piece, message: str) -> SampleError:
        key = self._index.key(piece.document)
        return SampleError(f"document {piece.document} (key {key!r}), column {self._column.name!r}: {message}")
