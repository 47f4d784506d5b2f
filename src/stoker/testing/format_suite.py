"""The contract of a format as tests: subclass FormatSuite, say which format and how to make its writer.

The suite makes its own samples, so that each format is read back from what its own writer wrote, fed whole, by other
steps of reading, cut at every block, with junk behind it and with bytes turned over.
"""

from __future__ import annotations

import io
import random
import tracemalloc
from collections.abc import Mapping
from typing import BinaryIO

import pytest

from stoker.errors import UsageError
from stoker.format.base import Format, SampleEntry, ShardScan, ShardWriter
from stoker.format.limits import READ_BYTES_MAX

Samples = Mapping[str, Mapping[str, bytes]]
SKIP_NEVER = 1 << 62


class BytesReader:
    """Bytes as a RangeReader that insists on the contract and counts what is asked of it."""

    def __init__(self, data: bytes, key: str = "shard") -> None:
        self.key = key
        self.size = len(data)
        self.reads = 0
        self.bytes_read = 0
        self.bytes_read_max = 0
        self._data = data

    def read(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= self.size, f"asked for bytes {start} to {stop} of {self.size}"
        self.reads += 1
        self.bytes_read += stop - start
        self.bytes_read_max = max(self.bytes_read_max, stop - start)
        return self._data[start:stop]


class BrokenFile(io.BytesIO):
    """A file on a disk that is full after *room* bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, data: object, /) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # whatever a file takes
        if self.tell() + view.nbytes > self._room:
            raise OSError(28, "No space left on device")
        return super().write(view)


def shape(scan: ShardScan) -> list[tuple[str, dict[str, tuple[int, int]]]]:
    """Keys and places of a scan, to compare."""
    return [(one.key, {place.name: (place.offset, place.length) for place in one.fields}) for one in scan.samples]


class FormatSuite:
    """Tests that every format with a writer must pass."""

    block_bytes = 512
    """The step in which a shard is cut by the test of truncation."""
    junk = b"junk" * 1000
    seed = 20_260_701

    def format(self) -> Format:
        """The format under test."""
        raise NotImplementedError

    def writer(self, out: BinaryIO) -> ShardWriter:
        """A writer of one shard."""
        raise NotImplementedError

    @pytest.fixture
    def samples(self) -> Samples:
        """Samples of odd lengths, empty fields and several fields included."""
        rng = random.Random(self.seed)
        lengths = [0, 1, 511, 512, 513, 4096, 70_000]
        return {
            f"folder {n % 3}/sämple-{n}": {
                "bin": rng.randbytes(lengths[n % len(lengths)]),
                **({"cls": str(n).encode()} if n % 4 else {}),
            }
            for n in range(24)
        }

    def written(self, samples: Samples) -> bytes:
        """The shard of these samples."""
        out = io.BytesIO()
        writer = self.writer(out)
        for key, fields in samples.items():
            writer.add(key, fields)
        assert writer.close() == len(out.getvalue())
        return out.getvalue()

    def scan(self, data: bytes, *, skip_bytes_min: int = 65_536) -> ShardScan:
        return self.format().scan(BytesReader(data), skip_bytes_min=skip_bytes_min)

    def test_what_is_written_is_found(self, samples: Samples) -> None:
        """A scan finds every field of every sample, byte for byte, and has nothing to complain of."""
        data = self.written(samples)
        scan = self.scan(data)
        assert scan.findings == ()
        found = {
            one.key: {place.name: data[place.offset : place.offset + place.length] for place in one.fields}
            for one in scan.samples
        }
        assert found == samples
        assert [one.key for one in scan.samples] == list(samples)

    def test_writer_tells_the_places(self, samples: Samples) -> None:
        """The places that `add` gives are those that a scan finds: an index can be written beside the shard."""
        out = io.BytesIO()
        writer = self.writer(out)
        told = [SampleEntry(key, writer.add(key, fields)) for key, fields in samples.items()]
        writer.close()
        assert shape(ShardScan(told, ())) == shape(self.scan(out.getvalue()))

    def test_same_samples_same_bytes(self, samples: Samples) -> None:
        """A shard's bytes depend on its samples only."""
        assert self.written(samples) == self.written(samples)

    @pytest.mark.parametrize("skip_bytes_min", [1, 4096, 1 << 20, SKIP_NEVER])
    def test_steps_of_reading_change_nothing(self, samples: Samples, skip_bytes_min: int) -> None:
        """However a shard is read, by hops or in a stream, the scan is the same and no read exceeds the limit."""
        data = self.written(samples)
        reader = BytesReader(data)
        assert shape(self.format().scan(reader, skip_bytes_min=skip_bytes_min)) == shape(self.scan(data))
        assert reader.bytes_read_max <= READ_BYTES_MAX

    def test_an_empty_shard_says_so(self) -> None:
        """A shard without samples is a warning, not an error, and no samples."""
        scan = self.scan(self.written({}))
        assert list(scan.samples) == []
        assert [finding.severity for finding in scan.findings] == ["warning"]

    def test_nothing_is_no_shard(self) -> None:
        """An object of 0 bytes is an error."""
        assert self.scan(b"").errors

    def test_junk_behind_the_end_is_noticed(self, samples: Samples) -> None:
        """Trailing bytes change no sample and give a finding."""
        data = self.written(samples)
        scan = self.scan(data + self.junk)
        assert shape(scan) == shape(self.scan(data))
        assert {finding.severity for finding in scan.findings} == {"warning"}

    def test_every_cut_is_noticed(self, samples: Samples) -> None:
        """A shard cut anywhere before its end mark gives an error, and only places that lie in what is left."""
        data = self.written(samples)
        end = max(place.offset + place.length for one in self.scan(data).samples for place in one.fields)
        rng = random.Random(self.seed)
        for cut in (*range(0, end, self.block_bytes), *(rng.randrange(1, end) for _ in range(50))):
            scan = self.scan(data[:cut])
            assert scan.errors, f"cut at {cut}: no error"
            assert all(place.offset + place.length <= cut for one in scan.samples for place in one.fields)

    def test_turned_bytes_never_break_a_scan(self, samples: Samples) -> None:
        """A scan of damaged bytes ends, raises nothing, and places nothing outside the shard."""
        data = bytearray(self.written(samples))
        rng = random.Random(self.seed)
        for _ in range(150):
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 1, 8, 64))):
                at = rng.randrange(len(data) // self.block_bytes) * self.block_bytes + rng.randrange(self.block_bytes)
                damaged[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
            scan = self.scan(bytes(damaged))
            assert all(0 <= p.offset <= p.offset + p.length <= len(data) for one in scan.samples for p in one.fields)

    def test_large_fields_are_not_read(self) -> None:
        """A scan that may skip reads little of large fields, and holds little in memory."""
        data = self.written({f"sample{n}": {"bin": bytes(4 << 20)} for n in range(4)})
        reader = BytesReader(data)
        tracemalloc.start()
        self.format().scan(reader, skip_bytes_min=65_536)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert reader.bytes_read < len(data) // 50
        assert peak < 1 << 20

    def test_a_writer_dies_of_its_first_error(self) -> None:
        """After a failed write nothing more can be added: no shard with a hole in it."""
        rng = random.Random(self.seed)
        writer = self.writer(BrokenFile(room=10_000))
        with pytest.raises(OSError, match="No space left"):
            for n in range(1_000):
                writer.add(f"sample{n}", {"bin": rng.randbytes(2_000)})
        with pytest.raises(UsageError):
            writer.add("one-more", {"bin": b""})
