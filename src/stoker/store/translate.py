"""From obstore's errors to the house's. obstore tells little by class, so most is read from its text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from stoker.errors import AccessError, ChangedError, NotFoundError, StoreError, UnsupportedError
from stoker.store.transient import UNREACHABLE, transient

_STATUS = re.compile(r"status(?:\scode)?:?\s*(?:code:\s*)?(\d{3})", re.IGNORECASE)
_CODE, _WORDS = re.compile(r"<Code>(.*?)</Code>"), re.compile(r"<Message>(.*?)</Message>")
_SHORT = re.compile(r"Requested \d+\.\.\d+, got \d+\.\.\d+")
_MESSAGE_MAX = 400
_UNREACHABLE = (
    "connection refused",
    "dns error",
    "failed to lookup address",
    "no route to host",
    "network is unreachable",
)
_RESET = (
    "connection reset", "connection closed", "broken pipe", "incompletemessage", "incomplete message",
    "unexpected eof", "error decoding response body", "request or response body error",
    "end of file before message length", "error sending request", "connect error",
    "channel closed",
)  # fmt: skip


@contextlib.contextmanager
def translated(url: str, key: str) -> Iterator[None]:
    """Turn what obstore raises inside the block into errors that name the store and the key."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{url}: no object {key!r}" + _bucket(str(error))) from error
    except (BaseError, ValueError) as error:
        raise house_error(f"{url}: {key!r}", error) from error


def house_error(where: str, error: Exception) -> StoreError:
    """The error of the house for one of obstore's."""
    from obstore import exceptions as of

    text = said(str(error))
    if isinstance(error, of.PermissionDeniedError | of.UnauthenticatedError):
        return AccessError(f"{where}: access refused: {text}", "check the credentials, or use anonymous access")
    if isinstance(error, of.AlreadyExistsError):
        return ChangedError(f"{where} exists already, expected none")
    if isinstance(error, of.PreconditionError | of.NotModifiedError):
        return ChangedError(f"{where} changed: it is not the expected version")
    if isinstance(error, of.NotSupportedError):
        return UnsupportedError(f"{where}: {text}")
    if "non-partial response" in text:
        return StoreError(
            f"{where}: the server answers a range with the whole object", "use a server that honours ranges"
        )
    if _SHORT.search(text):
        return transient(f"{where}: short answer: {text}", "short_body")
    return _generic(where, text, str(error))


def _generic(where: str, text: str, full: str) -> StoreError:
    """The rest, by what the text says: which of them another attempt may cure."""
    lower = full.lower()
    status = _STATUS.search(full)
    number = int(status[1]) if status else 0
    if "NoSuchBucket" in full:
        return NotFoundError(f"{where}: the bucket does not exist")
    if number == 501:
        return UnsupportedError(f"{where}: {text}")
    if "slowdown" in lower or "slow down" in lower or number == 429:
        return transient(f"{where}: {text}", "slow_down")
    if number >= 500 or number == 408:
        return transient(f"{where}: {text}", str(number))
    if number in (401, 403):
        return AccessError(f"{where}: access refused: {text}", "check the credentials, or use anonymous access")
    if number >= 400:
        return StoreError(f"{where}: {text}")
    if "timed out" in lower or "timedout" in lower:
        return transient(f"{where}: {text}", "timeout")
    sign = next((sign for sign in _UNREACHABLE if sign in lower), None)
    if sign is not None:
        return transient(f"{where}: nobody answers ({sign}): {text}", UNREACHABLE)
    if any(sign in lower for sign in _RESET):
        return transient(f"{where}: {text}", "reset")
    return StoreError(f"{where}: {text}")


def said(full: str) -> str:
    """The words of an error: the server's own, where it sent S3's XML, else the first paragraph in one line."""
    status, code, message = _STATUS.search(full), _CODE.search(full), _WORDS.search(full)
    if code is not None:
        words = [status[1] if status else "", code[1] + (":" if message else ""), message[1] if message else ""]
        return " ".join(filter(None, words))[:_MESSAGE_MAX]
    return " ".join(full.split("\n\nDebug source")[0].split())[:_MESSAGE_MAX]


def _bucket(text: str) -> str:
    """A remark when it is the bucket that is missing."""
    return ": the bucket does not exist" if "NoSuchBucket" in text else ""
