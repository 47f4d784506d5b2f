"""Windows of tokens copied from mapped shards straight to where a batch wants them, all windows of a batch at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.cache import Mapped, Objects
from stoker.clock import SYSTEM
from stoker.dataset.copying import Int64Array, copy_pieces, copy_rows
from stoker.dataset.gather import Shape
from stoker.dataset.shard_maps import Maps, ShardMaps
from stoker.dataset.token_plan import TokenColumn, native
from stoker.errors import SampleError
from stoker.events import Recorder
from stoker.index import Index


class TokenGatherer:
    """Windows over documents whose elements lie back to back in uncompressed shards."""

    def __init__(self, index: Index, objects: Objects, column: TokenColumn, recorder: Recorder) -> None:
        length = column.plan.length
        self.shapes: Mapping[str, Shape] = {
            "tokens": ((length,), str(native(column.layout.dtype))),
            "document": ((length,), "int32"),
        }
        self._index = index
        self._column = column
        self._starts = index.shard_starts
        self._shards = ShardMaps(index, objects, self._documents, recorder)

    def locate(self, samples: Int64Array) -> _Windows | None:
        column = self._column
        rows, documents, start, stop = column.plan.cut(samples)
        shards = np.searchsorted(self._starts, documents, side="right") - 1
        maps = self._shards.hold(shards)
        if maps is None:
            return None
        begins = np.empty(len(documents), np.int64)
        for shard in np.unique(shards).tolist():
            inside = shards == shard
            begins[inside] = maps.known[shard][documents[inside] - self._starts[shard]]
        size = column.layout.dtype.itemsize
        nbytes = (np.minimum(stop, column.plan.elements[documents]) - start) * size
        addresses = maps.first[shards] + begins + start * size
        self._shards.will_need(maps, shards, addresses, nbytes)
        return _Windows(self, maps, rows, addresses, nbytes, stop - start)

    def _documents(self, shard: int, mapped: Mapped) -> tuple[int, Int64Array] | None:
        """Where the elements of each document of a shard begin. None when one's head is not what was expected."""
        layout, first, stop = self._column.layout, int(self._starts[shard]), int(self._starts[shard + 1])
        starts = self._index.field_starts(self._column.name, first, stop)
        elements = self._column.plan.elements[first:stop]
        if layout.kind != "raw":
            for at in np.flatnonzero(elements).tolist():
                head = layout.head(int(elements[at]))
                try:
                    layout.check(bytes(mapped.bytes[starts[at] : starts[at] + head]), int(elements[at]))
                except SampleError:
                    return None
                starts[at] += head
        used = elements > 0
        ends = starts + elements * layout.dtype.itemsize
        if used.any() and (starts[used].min() < 0 or ends[used].max() > mapped.size):
            return None
        return mapped.address, starts

    def fill(self, windows: _Windows, outs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy the windows' tokens, and number their documents."""
        began_s = SYSTEM.monotonic()
        stored, made = self._column.layout.dtype, outs["tokens"]
        target = made if stored == made.dtype else np.empty(made.shape, stored)
        held = windows.nbytes // stored.itemsize
        places = np.cumsum(windows.tokens) - windows.tokens
        joined = (windows.addresses[1:] == windows.addresses[:-1] + windows.nbytes[:-1]) | (np.diff(windows.rows) > 0)
        if (held == windows.tokens).all() and joined.all():
            copy_rows(windows.addresses[np.searchsorted(windows.rows, np.arange(len(made)))], target)
        else:
            copy_pieces(windows.addresses, windows.nbytes, target.ctypes.data + places * stored.itemsize)
        if target is not made:
            made[...] = target
        ends = np.flatnonzero(held < windows.tokens)
        if len(ends):
            made.reshape(-1)[places[ends] + windows.tokens[ends] - 1] = self._column.eos
        if "document" in outs:
            self._number(windows, outs["document"])
        self._shards.copied(int(windows.nbytes.sum()), began_s)

    @staticmethod
    def _number(windows: _Windows, document: np.ndarray[Any, Any]) -> None:
        """0 for the tokens of each window's first document, 1 for the next."""
        if len(windows.rows) == len(document):
            document[...] = 0
            return
        numbers = np.arange(len(windows.rows)) - np.searchsorted(windows.rows, windows.rows)
        document.reshape(-1)[:] = np.repeat(numbers, windows.tokens)


class _Windows:
    """Windows whose pieces lie at known addresses, in order of the windows."""

    def __init__(
        self,
        owner: TokenGatherer,
        maps: Maps,
        rows: Int64Array,
        addresses: Int64Array,
        nbytes: Int64Array,
        tokens: Int64Array,
    ) -> None:
        self._owner = owner
        self._maps = maps  # keeps them mapped
        self.rows = rows
        self.addresses = addresses
        self.nbytes = nbytes
        self.tokens = tokens
        """Tokens that each piece makes: one more than its elements where the end token follows."""

    def fill(self, outs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._owner.fill(self, outs)
