"""S3, GCS, Azure and plain HTTP through obstore, held to the contract of `base.py`.

What obstore 0.12 does by itself and we do not let it: a range past the end comes back short without an error, so the
length is compared; `get_range` cannot pin a version, so ranges go by `get` with `If-Match`, and the ETag of the answer
is compared as well, since some servers ignore the condition; its own retries hide failures, so they are off; its 30 s
limit covers a whole body, so a limit on silence stands in its place; above 5 MB it uploads in parts that a kill leaves
behind, so objects up to 512 MB go in one request; its list takes whole path segments as prefix, so the rest is compared
here. A client is made on first use in each process; a process that was forked after that cannot have one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.errors import ChangedError, NotFoundError, StoreError, UnsupportedError, UsageError
from stoker.store.base import Buffer, ByteRange, ObjectInfo
from stoker.store.clients import check_not_forked, make_client
from stoker.store.keys import can_begin_keys, check_key, key_bytes
from stoker.store.options import StoreOptions
from stoker.store.probe import Conditions, probe_conditions
from stoker.store.transient import transient
from stoker.store.translate import translated

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Result = TypeVar("Result")

ONE_PUT_BYTES_MAX = 512 * 10**6
"""Objects up to this size are written by one request; it holds the object in memory."""
_PART_BYTES_MIN, _PARTS_MAX = 64 << 20, 9_000
_PARTS_AT_ONCE = 1
"""When a part fails, obstore aborts the upload; a part that is in flight meanwhile can bring it back to life (seen)."""


class Objects:
    """The objects under one bucket, container or host, below *prefix*."""

    def __init__(self, scheme: str, host: str, prefix: str, *, options: StoreOptions) -> None:
        self._scheme, self._host, self._prefix, self._options = scheme, host, prefix.strip("/"), options
        self._lock = threading.Lock()
        self._made: ObjectStore | None = None
        self._conditions: Conditions | None = None

    def __repr__(self) -> str:
        return f"Objects({self.url!r})"

    def __getstate__(self) -> dict[str, object]:
        return {"scheme": self._scheme, "host": self._host, "prefix": self._prefix, "options": self._options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # a pickled store is made anew, without its client

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._host}" + (f"/{self._prefix}" if self._prefix else "")

    def get(self, key: str, *, version: str | None = None) -> bytes:
        return self._fetch(key, None, version)

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        return [self._fetch(key, piece, version) if len(piece) else b"" for piece in ranges]

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        import obstore

        view = memoryview(data).cast("B")
        path = self._path(key)
        if view.nbytes <= ONE_PUT_BYTES_MAX:
            done = self._asked(key, lambda client: obstore.put(client, path, view, use_multipart=False))
        else:
            part_bytes = max(_PART_BYTES_MIN, -(-view.nbytes // _PARTS_MAX))
            done = self._asked(
                key,
                lambda client: obstore.put(
                    client, path, view, use_multipart=True, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE
                ),
            )
        return ObjectInfo(key, view.nbytes, done["e_tag"])

    def put_if(self, key: str, data: Buffer, *, version: str | None) -> ObjectInfo:
        import obstore

        view, path = memoryview(data).cast("B"), self._path(key)
        known = self._what_server_does()
        if not (known.create if version is None else known.update):
            condition = "If-None-Match" if version is None else "If-Match"
            raise UnsupportedError(
                f"{self.url}: {key!r}: the server ignores or refuses {condition} on writes",
                "use a server with conditional writes, or one writer at a time",
            )
        mode: Any = "create" if version is None else {"e_tag": version}
        done = self._asked(key, lambda client: obstore.put(client, path, view, mode=mode, use_multipart=False))
        return ObjectInfo(key, view.nbytes, done["e_tag"])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        if self._scheme in ("http", "https"):
            raise UnsupportedError(
                f"{self.url}: plain HTTP servers cannot list",
                "name the shards by a brace pattern, an index or a manifest",
            )
        return self._listed(prefix) if can_begin_keys(prefix) else iter(())

    def head(self, key: str) -> ObjectInfo:
        import obstore

        path = self._path(key)
        found = self._asked(key, lambda client: obstore.head(client, path))
        return ObjectInfo(key, found["size"], found["e_tag"])

    def delete(self, key: str) -> None:
        import obstore

        path = self._path(key)
        with contextlib.suppress(NotFoundError):
            self._asked(key, lambda client: obstore.delete(client, path))

    def copy(self, source: str, target: str) -> ObjectInfo:
        import obstore

        origin, to = self._path(source), self._path(target)
        self._asked(source, lambda client: obstore.copy(client, origin, to))
        return self.head(target)

    def _path(self, key: str) -> str:
        path = f"{self._prefix}/{key}" if self._prefix else key
        check_key(key, self.url)
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{self.url}: {key!r} is not UTF-8, which object stores need") from None
        return path

    def _client(self) -> ObjectStore:
        """This process's client, made on first use."""
        check_not_forked(self.url)
        with self._lock:
            if self._made is None:
                self._made = make_client(self._scheme, self._host, self._options)
            return self._made

    def _asked(self, key: str, work: Callable[[ObjectStore], Result]) -> Result:
        """The answer of the client, its errors turned into the house's."""
        client = self._client()
        with translated(self.url, key):
            return work(client)

    def _fetch(self, key: str, piece: ByteRange | None, version: str | None) -> bytes:
        """The bytes of one request, checked: their count, and that they are of *version*."""
        import obstore

        path = self._path(key)
        options: Any = {"if_match": version} if version is not None else {}
        if piece is not None:
            options["range"] = (piece.start, piece.stop)

        def work(client: ObjectStore) -> tuple[bytes, int, str | None]:
            answer = obstore.get(client, path, options=options)
            return bytes(answer.bytes()), answer.meta["size"], answer.meta["e_tag"]

        data, size, found = self._asked(key, work)
        if version is not None and found is not None and found != version:
            raise ChangedError(f"{self.url}: {key!r} changed: expected version {version}, found {found}")
        if piece is not None and piece.stop > size:
            raise StoreError(f"{self.url}: {key!r} holds {size} bytes, asked for bytes {piece.start} to {piece.stop}")
        expected = size if piece is None else len(piece)
        if len(data) != expected:
            raise transient(
                f"{self.url}: {key!r}: short answer: expected {expected} bytes, found {len(data)}", "short_body"
            )
        return data

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        import obstore

        folder = f"{self._prefix}/{prefix}".rpartition("/")[0].strip("/") if self._prefix else prefix.rpartition("/")[0]
        skip = len(self._prefix) + 1 if self._prefix else 0
        wanted = key_bytes(prefix)
        pages = iter(
            self._asked(prefix, lambda client: obstore.list(client, folder or None, offset=self._offset(prefix)))
        )
        while (page := self._asked(prefix, lambda _: next(pages, None))) is not None:
            for found in page:
                key = found["path"][skip:]
                if key.startswith(prefix):
                    yield ObjectInfo(key, found["size"], found["e_tag"])
                elif key_bytes(key) > wanted:
                    return

    def _offset(self, prefix: str) -> str | None:
        """A name just before all keys that begin with *prefix*, so that the server need not list what lies before."""
        shorter = prefix[:-1]
        if "/" in prefix[-1:] or shorter.rpartition("/")[2] in ("", ".", ".."):
            return None  # some servers refuse a start that is not itself below the folder
        return f"{self._prefix}/{shorter}" if self._prefix else shorter

    def _what_server_does(self) -> Conditions:
        client = self._client()
        if self._conditions is None:
            with translated(self.url, "(probe of conditional writes)"):
                self._conditions = probe_conditions(client, self._prefix)
        return self._conditions
