"""Parse and print bytes, rates and durations. Decimal units are powers of ten, `Ki` and kin are powers of two."""

from __future__ import annotations

import re
from numbers import Integral

from stoker.errors import UsageError

_POWERS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40, "PI": 2**50}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?I?)B?\s*", re.IGNORECASE)

BYTES_MAX, SECONDS_MAX = 2**63, 1e12
"""What is beyond is a slip of the hand: no store has so many bytes, no run lasts so long."""


def parse_bytes(text: str | int) -> int:
    """Bytes of "256MB" (10^6), "64MiB" (2^20), "1.5G" or 1000. Raises UsageError on anything else."""
    if isinstance(text, Integral) and not isinstance(text, bool):
        if int(text) < 0:
            raise UsageError(f"a size must not be negative, found {text}")
        return int(text)
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    unit = match[2].upper() if match is not None else "I"
    count = float(match[1]) * _BINARY.get(unit, _POWERS.get(unit, 1)) if match is not None else 0.0
    if unit == "I" or count > BYTES_MAX:
        raise UsageError(f"not a size: {text!r:.80}", "write a number with a unit, as 256MB, 64MiB or 2TB")
    return int(count)


def format_bytes(count: float) -> str:
    """Three significant digits with a decimal unit: 1_234_567 gives "1.23 MB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB" if abs(count) < 999.5 else f"{count:.0f} PB"


def format_duration(seconds: float) -> str:
    """A duration a person can read: "3.2 ms", "12.0 s", "2 min 05 s", "1 h 02 min"."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|µs|ms|s|min|h)?\s*")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of "180ms", "1.5s", "2min" or "0.18" (seconds). Raises UsageError on anything else."""
    match = _DURATION.fullmatch(text)
    if match is None or float(match[1]) > SECONDS_MAX:
        raise UsageError(f"not a duration: {text!r:.80}", "write a number with a unit: us, ms, s, min or h, as 180ms")
    return float(match[1]) * _SECONDS[match[2] or "s"]


_RATE = re.compile(r"(.*?)(b|bit|B|)\s*(?:/s|ps)?\s*")


def parse_rate(text: str) -> float:
    """Bytes a second of "20GB/s", "7GB" or, with a small b, of bits: "100Gb/s". Raises UsageError on anything else."""
    match = _RATE.fullmatch(text)
    try:
        return parse_bytes(match[1] if match else text) / (8 if match and match[2] in ("b", "bit") else 1)
    except UsageError:
        raise UsageError(f"not a rate: {text!r:.80}", "write bytes or bits a second, as 20GB/s or 100Gb/s") from None
