"""A store in this process's memory: for tests and small things. A pickled copy is a copy of the objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from blake3 import blake3

from stoker.errors import ChangedError, NotFoundError, StoreError
from stoker.store.base import Buffer, ByteRange, ObjectInfo
from stoker.store.keys import check_key, key_bytes


class Memory:
    """Objects in a dict. The version is the content's digest, so two stores of one name never confuse a cache."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Memory({self._name!r})"

    def __getstate__(self) -> dict[str, object]:
        with self._lock:
            return {"name": self._name, "objects": dict(self._objects)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._name, self._objects = state["name"], state["objects"]  # type: ignore[assignment]  # as __getstate__ made it
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def get(self, key: str, *, version: str | None = None) -> bytes:
        try:
            data = self._objects[check_key(key, self.url)]
        except KeyError:
            raise NotFoundError(f"{self.url}: no object {key!r}") from None
        if version is not None:
            self._check_version(key, data, version)
        return data

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        data = self.get(key, version=version)
        for piece in ranges:
            if not 0 <= piece.start <= piece.stop <= len(data):
                raise StoreError(
                    f"{self.url}: {key!r} holds {len(data)} bytes, asked for bytes {piece.start} to {piece.stop}"
                )
        return [data[piece.start : piece.stop] for piece in ranges]

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        with self._lock:
            self._objects[check_key(key, self.url)] = bytes(data)
        return _info(key, bytes(data))

    def put_if(self, key: str, data: Buffer, *, version: str | None) -> ObjectInfo:
        with self._lock:
            found = self._objects.get(check_key(key, self.url))
            if version is None and found is not None:
                raise ChangedError(f"{self.url}: {key!r} exists already, expected none")
            if version is not None and found is None:
                raise ChangedError(f"{self.url}: {key!r} does not exist, expected version {version}")
            if found is not None:
                self._check_version(key, found, version)
            self._objects[key] = bytes(data)
        return _info(key, bytes(data))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            objects = dict(self._objects)
        return (_info(key, objects[key]) for key in sorted(objects, key=key_bytes) if key.startswith(prefix))

    def head(self, key: str) -> ObjectInfo:
        return _info(key, self.get(key))

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key, self.url), None)

    def copy(self, source: str, target: str) -> ObjectInfo:
        return self.put(target, self.get(source))

    def _check_version(self, key: str, data: bytes, version: str | None) -> None:
        found = _info(key, data).version
        if found != version:
            raise ChangedError(f"{self.url}: {key!r} changed: expected version {version}, found {found}")


def _info(key: str, data: bytes) -> ObjectInfo:
    return ObjectInfo(key, len(data), blake3(data).hexdigest()[:32])
