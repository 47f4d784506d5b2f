"""How long every document of a token column is, and which pieces of which documents make a window: pure arithmetic.

A document's length is known from the bytes that the index says it has: elements lie one after the other, behind a head
whose length follows from the kind of array (raw bytes and `np:` have none, `.npy` and MDS's own arrays have one). The
head is read with the first element and must say what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stoker.decode.array import NPY_FAILURES, npy_header
from stoker.errors import SampleError, UsageError
from stoker.format.values import decode_value

Windows = Literal["concat", "per_document"]
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
_MDS_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements of a document lie in its bytes."""

    kind: Literal["raw", "npy", "mds"]
    dtype: np.dtype[Any]
    head_bytes: int = 0
    """npy: bytes of the head. mds: of what comes before the byte that says the number of dimensions."""
    mark: bytes = b""
    """mds: what that is."""

    def elements(self, lengths: Int64Array) -> Int64Array:
        """Elements [n] of documents of *lengths* bytes [n]. UsageError when one has no whole number of them."""
        if self.kind == "mds":
            found = np.full(len(lengths), -1, np.int64)
            for width in reversed(_MDS_WIDTHS):  # the narrowest that holds the number is the one that was written
                count, rest = np.divmod(lengths - self.head_bytes - 1 - width, self.dtype.itemsize)
                fits = (rest == 0) & (count >= 0) & (count.astype(np.float64) < 256.0**width)
                found[fits] = count[fits]
        else:
            found, rest = np.divmod(lengths - self.head_bytes, self.dtype.itemsize)
            found[rest != 0] = -1
        found[lengths == 0] = 0
        if len(found) and found.min() < 0:
            at = int(np.argmin(found))
            raise UsageError(f"document {at} has {int(lengths[at])} bytes: no whole number of {self.dtype} elements")
        return found

    def head(self, elements: int) -> int:
        """Bytes of the head of a document of so many elements."""
        if self.kind == "mds":
            return self.head_bytes + 1 + next(width for width in _MDS_WIDTHS if elements < 256**width)
        return self.head_bytes

    def check(self, head: bytes | memoryview, elements: int) -> None:
        """SampleError unless the document's head says one dimension of so many elements of this type."""
        if self.kind == "npy":
            try:
                shape, _, dtype, start = npy_header(head)
            except NPY_FAILURES as error:
                raise SampleError(f"no .npy: {error}") from error
            said: object = (shape, dtype, start)
            expected: object = ((elements,), self.dtype, self.head_bytes)
        else:
            width = len(head) - self.head_bytes - 1
            said = bytes(head)
            expected = self.mark + bytes([1 << 2 | _MDS_WIDTHS.index(width)]) + elements.to_bytes(width, "little")
        if said != expected:
            raise SampleError(f"the head of the array says {said!r}, expected {expected!r}")


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of a document; the element past its last is the end-of-document token."""

    document: int
    start: int
    stop: int


class WindowPlan:
    """Windows of *length* tokens over documents of *elements* [n] tokens each, an end token behind each with *eos*."""

    def __init__(self, elements: Int64Array, *, length: int, eos: bool, windows: Windows) -> None:
        if length < 1:
            raise UsageError(f"a window has at least 1 token, found length={length}")
        if windows not in ("concat", "per_document"):
            raise UsageError(f"windows must be 'concat' or 'per_document', found {windows!r}")
        self.length = length
        self.elements = elements
        held = elements + (elements > 0) if eos else elements
        self._per_document = windows == "per_document"
        if self._per_document:
            held, rest = np.divmod(held, length)
            self.dropped_tokens = int(rest.sum())
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(held)])
        """Where each document begins: in tokens, or per document in windows."""
        total = int(self._starts[-1])
        if self._per_document:
            self.windows = total
        else:
            self.windows, self.dropped_tokens = divmod(total, length)

    def starts(self, documents: Int64Array) -> Int64Array:
        """The first window that begins in or behind each of *documents* [n]: where shards begin, counted in windows."""
        first = self._starts[documents]
        if not self._per_document:
            first = -(-first // self.length)
        found: Int64Array = np.minimum(first, self.windows)
        return found

    def pieces(self, window: int) -> list[Piece]:
        """What a window is made of, in order."""
        if self._per_document:
            document = int(np.searchsorted(self._starts, window, side="right")) - 1
            start = (window - int(self._starts[document])) * self.length
            return [Piece(document, start, start + self.length)]
        at, stop = window * self.length, (window + 1) * self.length
        document = int(np.searchsorted(self._starts, at, side="right")) - 1
        found = []
        while at < stop:
            first, end = int(self._starts[document]), int(self._starts[document + 1])
            if end > at:
                found.append(Piece(document, at - first, min(stop, end) - first))
                at = min(stop, end)
            document += 1
        return found

    def cut(self, windows: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """The pieces of all *windows* [n], each int64 [pieces]: the window's row, document, start and stop in it."""
        if self._per_document:
            documents = np.searchsorted(self._starts, windows, side="right") - 1
            start = (windows - self._starts[documents]) * self.length
            return np.arange(len(windows)), documents, start, start + self.length
        at = windows * self.length
        first = np.searchsorted(self._starts, at, side="right") - 1
        last = np.searchsorted(self._starts, at + self.length, side="left") - 1
        counts = last - first + 1
        rows = np.repeat(np.arange(len(windows)), counts)
        documents = first[rows] + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
        begins = self._starts[documents]
        start = np.maximum(begins, at[rows])
        stop = np.minimum(self._starts[documents + 1], at[rows] + self.length)
        kept = stop > start
        if not kept.all():  # documents without tokens
            rows, documents, begins, start, stop = (one[kept] for one in (rows, documents, begins, start, stop))
        return rows, documents, start - begins, stop - begins

    def documents(self, windows: Int64Array) -> Int64Array:
        """Every document that *windows* [n] need, in order of use."""
        used = [piece.document for window in windows.tolist() for piece in self.pieces(window)]
        return np.array(list(dict.fromkeys(used)), np.int64)


class TokenColumn:
    """A column of documents and the windows over it: a value."""

    def __init__(self, name: str, layout: Layout, plan: WindowPlan, eos: int | None, windows: Windows) -> None:
        self.name = name
        self.layout = layout
        self.plan = plan
        self.eos = eos
        self.windows = windows

    def said(self) -> str:
        """All that decides what a window holds, beside the documents."""
        return repr((self.name, str(self.layout.dtype), self.plan.length, self.eos, self.windows))


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that windows have: signed and native, as embeddings take it. UsageError for what holds no tokens."""
    if dtype.kind not in "iu":
        raise UsageError(f"tokens are whole numbers, the column holds {dtype}")
    if dtype.kind == "i":
        return dtype.newbyteorder("=")
    return np.dtype({1: np.int16, 2: np.int32}.get(dtype.itemsize, np.int64))


def layout_of(codecs: Sequence[str], column: str, dtype: np.dtype[Any] | None, first: bytes) -> Layout:
    """How a column's documents lie in their bytes, from its codec, the type asked for, and the *first* document."""
    codec = codecs[0]
    kind, _, rest = codec.partition(":")
    parts = rest.split(":")
    if len(codecs) > 1:
        raise UsageError(f"column {column!r} comes in several encodings: {', '.join(codecs)}")
    if kind == "np":
        return Layout("raw", _same(np.dtype(parts[0]), dtype, column))
    if kind == "mds" and parts[0] == "ndarray":
        return _mds(parts[1:], column, dtype, first)
    if codec == "" and column.rsplit(".", 1)[-1] == "npy":
        try:
            _, _, found, start = npy_header(first)
        except NPY_FAILURES as error:
            raise SampleError(f"column {column!r}: its first document is no .npy: {error}") from error
        return Layout("npy", _same(found, dtype, column), start)
    if codec in ("", "mds:bytes"):
        if dtype is None:
            raise UsageError(f"column {column!r} holds bytes: of which numbers?", "say dtype=, as dtype='uint16'")
        return Layout("raw", dtype)
    raise UsageError(
        f"column {column!r} is encoded as {codec!r}: no array of tokens", "tokens come from arrays or bytes"
    )


def _mds(arguments: list[str], column: str, dtype: np.dtype[Any] | None, first: bytes) -> Layout:
    """MDS: [dtype: 1] [dimensions << 2 | width of sizes: 1] [sizes] values; what the encoding fixes falls away."""
    if len(arguments) == 2:
        return Layout("raw", _same(np.dtype(arguments[0]), dtype, column))
    if arguments:
        return Layout("mds", _same(np.dtype(arguments[0]), dtype, column))
    array = decode_value("mds:ndarray", first)
    assert isinstance(array, np.ndarray)
    return Layout("mds", _same(array.dtype, dtype, column), 1, bytes(first[:1]))


def _same(found: np.dtype[Any], asked: np.dtype[Any] | None, column: str) -> np.dtype[Any]:
    if asked is not None and asked != found:
        raise UsageError(f"column {column!r} holds {found}, dtype= says {asked}", "leave dtype out")
    return found
