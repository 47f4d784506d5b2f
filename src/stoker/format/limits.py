"""The hard limits of every reader, in one table: nothing that a file says about itself is believed beyond them.

A limit is far above what honest data needs and far below what hurts. Memory that a reader takes is bounded by these
numbers, never by a length that a header declares.
"""

from __future__ import annotations

EXPAND_WINDOW_BYTES_MAX = 1 << 27
"""Window that a compressed stream may ask for (zstd --ultra and --long up to 27, xz -9 need 128 and 65 MiB)."""
EXPAND_PIECE_BYTES = 1 << 20
"""Expanded bytes held at once (zstd: up to 16 MiB, see codec)."""
EXPANDED_BYTES_MAX = 64 << 30
"""Expanded bytes of one shard when the caller sets no other limit."""

FILE_BYTES_MAX = 1 << 30
"""One file that is packed, member of an archive or not: it is held in memory while it is copied."""

READ_BYTES_MAX = 8 << 20
"""Bytes of one range read of a scan."""

NAME_BYTES_MAX = 16 << 10
"""A member's name or a key. Linux stops at 4 KiB, S3 at 1 KiB. 65,536 of them fit a string column of the index."""
FIELD_NAME_BYTES_MAX = 1_024
"""One field name (an extension)."""
TAR_EXTENSION_BYTES_MAX = 1 << 20
"""A pax header or a GNU long name, as a whole: it is read into memory."""
TAR_EXTENSIONS_IN_A_ROW_MAX = 16
"""Extension headers before one member. Honest writers need three: global pax, pax, GNU long name."""
TAR_MEMBERS_MAX = 5_000_000
"""Members of one shard: all of them are in memory while it is indexed."""
TAR_BEHIND_BYTES_MAX = 256 << 20
"""Bytes behind the end mark that are looked at for samples lost in a hole. Honest writers pad with 1 MiB at most."""
FINDINGS_KEPT_PER_CODE_MAX = 20
"""Findings of one code that are kept word for word; the rest is counted."""

LOOK_MEMORY_BYTES_MAX = 4 << 30
"""Address space of the process that looks at the structure of an HDF5 file or a table, its libraries included."""
LOOK_CPU_S_MAX = 20
"""Seconds of CPU time of one look."""
LOOK_S_MAX = 30.0
"""Seconds that a look may be silent."""
LOOK_ANSWER_BYTES_MAX = 64 << 20
HDF5_OBJECTS_MAX = 200_000
"""Groups and datasets of a file."""
HDF5_DEPTH_MAX = 64
"""Groups inside groups."""
ROW_FIELDS_MAX = 4_096
"""Datasets of an HDF5 file, or columns of a table."""
ROWS_PER_BYTE_MAX = 1_024
"""Rows that a byte of a file may stand for, beyond the first ROWS_FREE: gzip gives 1,032 bytes for one."""
ROWS_FREE = 1_000_000
DECLARED_FREE_BYTES = 1 << 30
"""Bytes that a dataset may declare whatever its file's size."""
DECLARED_RATIO_MAX = 4_096
"""Declared bytes for one of the file, beyond DECLARED_FREE_BYTES."""
ROW_BYTES_MAX = 1 << 30
"""One row of one field."""
CHUNK_BYTES_MAX = 256 << 20
"""One chunk of an HDF5 dataset, expanded: it is read whole."""
GROUP_BYTES_MAX = 1 << 30
"""One column of a row group, decoded: it is held whole."""

TFRECORD_BYTES_MAX = 256 << 20
"""One record: it is in memory while its checksum is taken."""
TFRECORD_RECORDS_MAX = 5_000_000
"""Records of one shard: all of them are in memory while it is indexed."""
TFRECORD_FEATURES_MAX = 65_536
"""Features of one record; the index numbers names with 16 bits."""

MDS_INDEX_BYTES_MAX = 64 << 20
"""An index.json: about 90,000 shards. Parsed it takes up to twenty times as much memory."""
MDS_SHARDS_MAX = 1_000_000
MDS_HEADER_BYTES_MAX = 1 << 20
"""The JSON inside a shard that describes its columns."""
MDS_COLUMNS_MAX = 4_096
MDS_SAMPLES_MAX = 16 << 20
"""Samples of one shard: 50 bytes each, and 8 for each column that varies, are in memory while it is indexed."""
LIST_ITEMS_MAX = 1 << 20
"""Items of one field that is a list (but for packed numbers, which are an array)."""
SNAPPY_BYTES_MAX = 1 << 30
"""Expanded bytes of one snappy block: it can only be expanded in memory, as a whole."""
THRIFT_BYTES_MAX = 64 << 20
"""A text in Parquet's metadata; a list in it has at most a sixteenth as many elements."""
ARRAYS_HEAD_BYTES_MAX = 4 << 20
ARRAYS_KEYS_BYTES_MAX = 1 << 30
"""All keys of a shard of arrays: they are in memory while it is indexed."""
