"""The hard limits of every reader, in one table: nothing that a file says about itself is believed beyond them.

A limit is far above what honest data needs and far below what hurts. Memory that a reader takes is bounded by these
numbers, never by a length that a header declares.
"""

from __future__ import annotations

EXPAND_WINDOW_BYTES_MAX = 1 << 27
"""Window that a compressed stream may ask for (zstd --ultra and --long up to 27, xz -9 need 128 and 65 MiB)."""
EXPAND_PIECE_BYTES = 1 << 20
"""Expanded bytes held at once (zstd: up to 16 MiB, see codec)."""
EXPANDED_BYTES_MAX = 1 << 40
"""Expanded bytes of one shard when the caller sets no lower limit of its own."""

TAR_NAME_BYTES_MAX = 64 << 10
"""A member's name, from the header, a pax record or a GNU long name. Linux itself stops at 4 KiB."""
TAR_EXTENSION_BYTES_MAX = 1 << 20
"""A pax header or a GNU long name, as a whole: it is read into memory."""
TAR_EXTENSIONS_IN_A_ROW_MAX = 16
"""Extension headers before one member. Honest writers need three: global pax, pax, GNU long name."""
TAR_MEMBERS_MAX = 50_000_000
"""Members of one shard."""
FIELD_NAMES_MAX = 65_535
"""Distinct field names of a dataset: the index numbers them with 16 bits."""
FIELD_NAME_BYTES_MAX = 1_024
"""One field name (an extension, a column)."""
FINDINGS_KEPT_MAX = 1_000
"""Findings that a scan keeps word for word; the rest is counted by code."""
MANIFEST_LINE_BYTES_MAX = 16 << 20
"""One row of a CSV or JSON-lines manifest."""
MANIFEST_BYTES_MAX = 4 << 30
"""A whole manifest of raw files."""
