"""Every format that stoker can write passes the contract of formats."""

from __future__ import annotations

import io
from typing import BinaryIO

from stoker.format import FORMATS, Format, ShardWriter, WebDatasetWriter
from stoker.format.codec import expanded
from stoker.testing.format_suite import FormatSuite, Samples


class TestWebDataset(FormatSuite):
    """Plain tar shards."""

    def format(self) -> Format:
        return FORMATS["webdataset"]

    def writer(self, out: BinaryIO) -> ShardWriter:
        return WebDatasetWriter(out)


class _Compressed(FormatSuite):
    """Whole-compressed shards are scanned as they are after expansion."""

    compression = ""

    def format(self) -> Format:
        return FORMATS["webdataset"]

    def writer(self, out: BinaryIO) -> ShardWriter:
        return WebDatasetWriter(out, compression=self.compression)

    def written(self, samples: Samples) -> bytes:
        out = io.BytesIO(super().written(samples))
        return b"".join(expanded([out.getvalue()], self.compression))

    def test_writer_tells_the_places(self, samples: Samples) -> None:
        """The places that `add` gives count in the expanded bytes."""
        writer = self.writer(io.BytesIO())
        told = [writer.add(key, fields) for key, fields in samples.items()]
        found = [one.fields for one in self.scan(self.written(samples)).samples]
        assert told == found


class TestGzip(_Compressed):
    """tar.gz"""

    compression = "gzip"


class TestZstd(_Compressed):
    """tar.zst"""

    compression = "zstd"
