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
