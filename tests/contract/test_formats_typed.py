"""Formats with typed fields pass the contract of formats, but for what their layouts cannot give."""

from __future__ import annotations

import io
import random
import tracemalloc
from typing import BinaryIO

import pytest

from stoker.errors import UsageError
from stoker.format import FORMATS, Format, SampleEntry, ShardScan
from stoker.format.limits import READ_BYTES_MAX
from stoker.format.mds import MDSWriter
from stoker.format.tfrecord import TFRecordWriter
from stoker.testing.format_suite import BrokenFile, BytesReader, FormatSuite, Samples, shape


class TestMDS(FormatSuite):
    """Every sample has the same columns, and places are final when the shard is closed."""

    block_bytes = 64

    def format(self) -> Format:
        return FORMATS["mds"]

    def writer(self, out: BinaryIO) -> MDSWriter:
        return MDSWriter(out)

    @pytest.fixture
    def samples(self) -> Samples:
        rng = random.Random(self.seed)
        lengths = [0, 1, 511, 512, 513, 4096, 70_000]
        return {
            f"folder {n % 3}/sämple-{n}": {"bin": rng.randbytes(lengths[n % len(lengths)]), "cls": str(n).encode()}
            for n in range(24)
        }

    def test_writer_tells_the_places(self, samples: Samples) -> None:
        """The places that `add` gives are those of a scan, counted from `start`."""
        out = io.BytesIO()
        writer = self.writer(out)
        told = [SampleEntry(key, writer.add(key, fields)) for key, fields in samples.items()]
        writer.close()
        found = [
            (key, {name: (offset - writer.start, length) for name, (offset, length) in fields.items()})
            for key, fields in shape(self.scan(out.getvalue()))
        ]
        assert shape(ShardScan(told, ())) == found

    def test_a_writer_dies_of_its_first_error(self) -> None:
        """The shard is written when it is closed; after that, failed or not, nothing can be added."""
        writer = self.writer(BrokenFile(room=10_000))
        for n in range(10):
            writer.add(f"sample{n}", {"bin": bytes(2_000)})
        with pytest.raises(OSError, match="No space left"):
            writer.close()
        with pytest.raises(UsageError):
            writer.add("one-more", {"bin": b""})


class TestTFRecord(FormatSuite):
    """There is no table and no end mark: all must be read, and a file cut between records is a shorter one."""

    def format(self) -> Format:
        return FORMATS["tfrecord"]

    def writer(self, out: BinaryIO) -> TFRecordWriter:
        return TFRecordWriter(out)

    def test_nothing_is_no_shard(self) -> None:
        """A file of 0 bytes is what a writer of no records leaves: a warning."""
        assert [finding.severity for finding in self.scan(b"").findings] == ["warning"]

    def test_junk_behind_the_end_is_noticed(self, samples: Samples) -> None:
        """Whatever follows the last record is a damaged record; the samples before it stay."""
        data = self.written(samples)
        scan = self.scan(data + self.junk)
        assert shape(scan) == shape(self.scan(data))
        assert "length CRC mismatch" in scan.errors[0].message

    def test_every_cut_is_noticed(self, samples: Samples) -> None:
        """A file cut anywhere but between two records, its header included, gives an error and what is whole."""
        data, ends, whole = self.written(samples), [], 0
        while whole < len(data):
            whole += 16 + int.from_bytes(data[whole : whole + 8], "little")
            ends.append(whole)
        rng = random.Random(self.seed)
        near = [end + more for end in ends[:-1] for more in (-1, 0, 1, 11, 12)]
        for cut in (*near, *(rng.randrange(1, len(data)) for _ in range(50))):
            scan = self.scan(data[:cut])
            assert bool(scan.errors) != (cut in ends), cut
            assert len(scan.samples) == sum(end <= cut for end in ends)

    def test_large_fields_are_not_read(self) -> None:
        """They are, for their checksums: in bounded steps, and one record at a time is in memory."""
        data = self.written({f"sample{n}": {"bin": bytes(10 << 20)} for n in range(4)})
        reader = BytesReader(data)
        tracemalloc.start()
        self.format().scan(reader, skip_bytes_min=65_536)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert reader.bytes_read_max <= READ_BYTES_MAX
        assert reader.bytes_read < 1.1 * len(data)
        assert peak < 45 << 20
