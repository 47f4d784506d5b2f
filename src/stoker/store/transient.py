"""The failure that another attempt may cure; `Retrying` looks for nothing else."""

from __future__ import annotations

from stoker.errors import StoreError

UNREACHABLE = "unreachable"
"""The reason when nobody answers: the connection is refused, the host unknown."""


class TransientError(StoreError):
    """A 5xx, "slow down", a timeout, a reset, a short body: the same call may succeed later."""

    reason: str = "other"
    """What is counted: "503", "slow_down", "timeout", "reset", "short_body", "unreachable", …"""


def transient(message: str, reason: str) -> TransientError:
    """A TransientError with its reason. Apart from the constructor, so that it can be pickled like every error."""
    error = TransientError(message)
    error.reason = reason
    return error
