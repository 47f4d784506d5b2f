"""What bytes mean: formats of shards, their limits, compression. Pure: reads through a Protocol of its own."""

from __future__ import annotations

from collections.abc import Callable

from stoker.format.arrays import Arrays
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
from stoker.format.hdf5 import HDF5
from stoker.format.mds import MDS
from stoker.format.names import IMAGE_FIELDS, STOKER_FOLDER, is_image
from stoker.format.rows import ROW_FORMATS, RowFormat
from stoker.format.table import TABLE
from stoker.format.tfrecord import TFRecord
from stoker.format.webdataset import WebDataset, WebDatasetWriter, compression_of

FORMATS: dict[str, Format] = {"webdataset": WebDataset(), "mds": MDS(), "tfrecord": TFRecord(), "arrays": Arrays()}
"""The formats that keep many samples in one object. The other way is "files": see `stoker.format.files`."""
ROW_SHARDS: dict[str, RowFormat] = {one.name: one for one in (HDF5, TABLE)}
"""The formats whose samples are rows that a library reads from a file."""
OWNS: dict[str, Callable[[str], bool]] = {
    **{name: one.owns for name, one in FORMATS.items()},
    **{name: one.owns for name, one in ROW_SHARDS.items()},
}
"""By format: whether an object of that name claims to be one of its shards."""
ROW_FORMATS.update({name: one.open for name, one in ROW_SHARDS.items()})

__all__ = [
    "FORMATS",
    "IMAGE_FIELDS",
    "OWNS",
    "ROW_SHARDS",
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
