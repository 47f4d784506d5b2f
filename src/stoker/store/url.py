"""From a URL to a store: `s3://b/p`, `gs://`, `az://`, `http(s)://`, `file:///x` or a bare path."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from stoker.errors import UsageError
from stoker.events import SILENT, Recorder
from stoker.store.base import Store
from stoker.store.limit import Limited
from stoker.store.local import Local
from stoker.store.meter import Metered
from stoker.store.objects import Objects
from stoker.store.options import StoreOptions
from stoker.store.retry import Retrying
from stoker.store.wrap import innermost

REMOTE_SCHEMES = ("s3", "gs", "az", "http", "https")
EXPANDED_MAX = 1_000_000
"""The most URLs that one brace pattern may stand for."""

_BRACE = re.compile(r"\{(?:(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([^{}]*,[^{}]*))\}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Location:
    """The parts of a URL, without secrets."""

    scheme: str
    """"file" for bare paths too."""
    host: str
    """Bucket, container or host with port; "" for files."""
    path: str
    """Absolute for files, without slashes at its ends elsewhere."""

    @property
    def url(self) -> str:
        if self.scheme == "file":
            return Local(self.path).url
        return f"{self.scheme}://{self.host}" + (f"/{self.path}" if self.path else "")


def parse(url: str | Path) -> Location:
    """The parts of *url*; UsageError for unknown schemes, and for user names, passwords and queries in it."""
    text = str(url)
    scheme = _SCHEME.match(text)
    if scheme is None:
        if not text:
            raise UsageError("an empty URL", "write s3://bucket/prefix, file:///folder or a path")
        return Location("file", "", str(Path(text).expanduser().absolute()))
    name = scheme[1].lower()
    if name == "file":
        return Location("file", "", _file_path(text[len(scheme[0]) :]))
    if name not in REMOTE_SCHEMES:
        raise UsageError(f"unknown kind of store {name}://", f"known: file, {', '.join(REMOTE_SCHEMES)} and bare paths")
    parts = urlsplit(text)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{name}:// URL with a user, password, query or fragment", "give credentials by the environment or options"
        )
    if not parts.netloc:
        raise UsageError(f"{text}: no bucket or host")
    return Location(name, parts.netloc, parts.path.strip("/"))


def _file_path(rest: str) -> str:
    """The path of a file URL after "file://"."""
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise UsageError(f"file://{rest}: a file URL has no host", "write file:///absolute/path")
    raw = unquote_to_bytes("/" + path)
    if b"\0" in raw:
        raise UsageError(f"file://{rest}: holds a NUL byte")
    return raw.decode("utf-8", "surrogateescape")


def expand(url: str) -> list[str]:
    """All URLs of a brace pattern: `{000..123}` keeps its zeros, `{0..10..5}` steps, `{a,b}` chooses; several multiply.

    Braces that are neither stay as they are.
    """
    pieces: list[list[str]] = []
    count, at = 1, 0
    for brace in _BRACE.finditer(url):
        choices = brace[4].split(",") if brace[4] is not None else _numbers(url, brace)
        count *= len(choices)
        if count > EXPANDED_MAX:
            raise UsageError(f"{url}: stands for more than {EXPANDED_MAX} URLs")
        pieces += [[url[at : brace.start()]], choices]
        at = brace.end()
    return ["".join(parts) for parts in itertools.product(*pieces, [url[at:]])]


def _numbers(url: str, brace: re.Match[str]) -> list[str]:
    """The numbers from the first to the last, both included, as wide as the wider of them where one begins with 0."""
    first, last, step = int(brace[1]), int(brace[2]), abs(int(brace[3] or 1)) or 1
    if abs(last - first) // step >= EXPANDED_MAX:
        raise UsageError(f"{url}: stands for more than {EXPANDED_MAX} URLs")
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (brace[1], brace[2]))
    width = max(len(brace[1]), len(brace[2])) if padded else 0
    down = -1 if last < first else 1
    return [f"{number:0{width}d}" for number in range(first, last + down, step * down)]


def check_there(store: Store) -> None:
    """NotFoundError where a folder of this machine is missing; a remote store tells when it is asked."""
    bottom = innermost(store)
    if isinstance(bottom, Local):
        bottom.check_there()


def connect(url: str | Path, *, recorder: Recorder = SILENT, options: StoreOptions | None = None) -> Store:
    """The store at *url*, counted; a remote one is limited and retried too. Sends nothing yet."""
    place = parse(url)
    if place.scheme == "file":
        return Metered(Local(place.path), recorder)
    chosen = (options or StoreOptions()).completed()
    attempts = Limited(
        Metered(Objects(place.scheme, place.host, place.path, options=chosen), recorder),
        requests_max=chosen.requests_max,
        bytes_per_s_max=chosen.bytes_per_s_max,
    )
    return Retrying(attempts, deadline_s=chosen.deadline_s, recorder=recorder)
