"""What a key may be: relative, separated by "/", and unable to leave its store."""

from __future__ import annotations

from stoker.errors import UsageError

TEMPORARY_PREFIX = ".stoker-tmp-"
"""File names that begin so are half-written objects: no key may use them, no list shows them."""

KEY_BYTES_MAX = 1024
"""The longest key of S3, in bytes of UTF-8."""


def key_bytes(key: str) -> bytes:
    """The key as it is compared and stored; names that are not UTF-8 come back as the bytes that they were."""
    return key.encode("utf-8", "surrogateescape")


def can_begin_keys(prefix: str) -> bool:
    """Whether any usable key can begin with *prefix*: its folders must be real names."""
    return not any(part in ("", ".", "..") or "\0" in part for part in prefix.split("/")[:-1])


def check_key(key: str, url: str) -> str:
    """The key itself, or UsageError if it is empty, absolute, too long, or could leave *url*."""
    fault = _fault(key)
    if fault:
        raise UsageError(
            f"{url}: not a usable key: {key!r} {fault}", 'write keys as "folder/name", relative to the URL'
        )
    return key


def _fault(key: str) -> str:
    """What is wrong with a key; "" when nothing is."""
    if not key:
        return "is empty"
    if "\0" in key:
        return "holds a NUL character"
    if len(key) > KEY_BYTES_MAX or len(key_bytes(key)) > KEY_BYTES_MAX:
        return f"is longer than {KEY_BYTES_MAX} bytes"
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return 'holds an empty part, "." or ".."'
    if parts[-1].startswith(TEMPORARY_PREFIX):
        return f"uses the reserved prefix {TEMPORARY_PREFIX}"
    return ""
