"""See `_region.c`."""

from typing_extensions import Buffer

def decode_region(
    jpeg: Buffer, denominator: int, area: tuple[int, int, int, int], out: Buffer, /
) -> tuple[int, int] | None: ...
