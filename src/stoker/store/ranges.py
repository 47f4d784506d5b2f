"""Decides which requests fetch the wanted bytes; sends none."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.store.base import ByteRange


def coalesce(wanted: Sequence[ByteRange], *, gap_bytes_max: int, length_bytes_max: int) -> list[ByteRange]:
    """Merge ranges at most *gap_bytes_max* apart, unless the whole would pass *length_bytes_max*; in order of start."""
    merged: list[ByteRange] = []
    for piece in sorted(wanted):
        last = merged[-1] if merged else None
        joins = (
            last is not None
            and piece.start - last.stop <= gap_bytes_max
            and (piece.stop <= last.stop or piece.stop - last.start <= length_bytes_max)
        )
        if last is not None and joins:
            merged[-1] = ByteRange(last.start, max(last.stop, piece.stop))
        else:
            merged.append(piece)
    return merged


def covering(requests: Sequence[ByteRange], piece: ByteRange) -> int:
    """Number of the request (of `coalesce`) that holds *piece* whole."""
    for number, request in enumerate(requests):
        if request.start <= piece.start and piece.stop <= request.stop:
            return number
    raise ValueError(f"no request covers {piece}")


def split(whole: ByteRange, *, length_bytes_max: int) -> list[ByteRange]:
    """Cut a range into pieces of *length_bytes_max*, the last one shorter; none for an empty range."""
    starts = range(whole.start, whole.stop, length_bytes_max)
    return [ByteRange(start, min(start + length_bytes_max, whole.stop)) for start in starts]
