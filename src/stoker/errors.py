"""What can go wrong, as the caller sees it.

A class exists only where a caller would act differently. Every message says what, where, what was expected and what was
found; the hint says what to do next. The message is positional and the hint optional, because an exception with a
required keyword cannot be unpickled, so a worker process could not report it.
"""

from __future__ import annotations

import re

REASON_CHARACTERS_MAX = 300
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+(?=>)")


def reason_of(error: BaseException) -> str:
    """Type and text of somebody else's exception in one line, without memory addresses: the same on every run."""
    text = " ".join(_ADDRESS.sub("", str(error)).split())[:REASON_CHARACTERS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class StokerError(Exception):
    """Root of all errors that stoker raises on purpose."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[StokerError], tuple[str, str | None]]:
        return type(self), (self.message, self.hint)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(StokerError, ValueError):
    """The call itself is wrong: a bad argument, option or combination. The CLI exits with 2."""


class MissingExtraError(StokerError, ImportError):
    """A feature needs an optional package that is not installed; the hint names the extra."""


class StoreError(StokerError, OSError):
    """A store could not do what was asked: unreachable, refused, wrong answer."""


class NotFoundError(StoreError, FileNotFoundError):
    """No object lies under that key."""


class AccessError(StoreError, PermissionError):
    """The store knows who asks, or does not, and refuses."""


class ChangedError(StoreError):
    """An object is not the one that was indexed, or a conditional write lost the race."""


class UnsupportedError(StoreError):
    """The store cannot give the guarantee that the call needs."""


class ShardError(StokerError, ValueError):
    """The bytes of a shard, an index or a manifest are not what their format promises."""


class SampleError(StokerError, ValueError):
    """One sample cannot be used; `on_bad` says what happens then."""

    reason = "undecodable"
    """Short and countable."""


class MissingFieldError(SampleError):
    """A sample lacks a field that was asked for."""

    reason = "missing field"


class CacheError(StokerError, OSError):
    """The cache directory cannot be used as asked."""


class CheckpointError(StokerError, RuntimeError):
    """A checkpoint could not be saved, or is not what was saved."""


class FeederError(StokerError, RuntimeError):
    """The feeder process died, fell silent or could not be started."""
