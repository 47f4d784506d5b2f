"""What bytes mean: formats of shards, their limits, compression. Pure: reads through a Protocol of its own."""

from __future__ import annotations

from stoker.format.base import (
    ColumnValue,
    FieldPlace,
    Finding,
    Findings,
    Format,
    RangeReader,
    SampleEntry,
    ShardScan,
    ShardWriter,
)
from stoker.format.names import IMAGE_FIELDS, STOKER_FOLDER, is_image
from stoker.format.webdataset import WebDataset, WebDatasetWriter, compression_of

FORMATS: dict[str, Format] = {"webdataset": WebDataset()}
"""The formats that keep many samples in one object. The other way is "files": see `stoker.format.files`."""

__all__ = [
    "FORMATS",
    "IMAGE_FIELDS",
    "STOKER_FOLDER",
    "ColumnValue",
    "FieldPlace",
    "Finding",
    "Findings",
    "Format",
    "RangeReader",
    "SampleEntry",
    "ShardScan",
    "ShardWriter",
    "WebDataset",
    "WebDatasetWriter",
    "compression_of",
    "is_image",
]
