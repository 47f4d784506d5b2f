"""What tests of stores and caches share."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from stoker.cli.servers import Server
from stoker.index.entry import ObjectRef
from stoker.store import ByteRange, ObjectInfo, Store, StoreOptions, connect, digest_of
from stoker.store.transient import transient
from stoker.store.wrap import Around, Call, Result

_numbers = itertools.count()


def fresh_prefix(server: Server, bucket: str = "tests") -> str:
    """URL of a place on the server that no test used before."""
    server.make_bucket(bucket)
    return f"s3://{bucket}/place {next(_numbers)}"


def options_for(server: Server, *, endpoint: str | None = None, deadline_s: float = 30.0) -> StoreOptions:
    """Options that reach the server, by *endpoint* when a proxy stands before it."""
    return StoreOptions(
        endpoint=endpoint or server.endpoint,
        region="us-east-1",
        access_key=server.access_key,
        secret_key=server.secret_key,
        deadline_s=deadline_s,
    )


def store_on(server: Server) -> Store:
    """An empty store on the server."""
    return connect(fresh_prefix(server), options=options_for(server))


def random_bytes(seed: int, count: int) -> bytes:
    """The same bytes for the same seed."""
    return random.Random(seed).randbytes(count)


class FakeClock:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Counting(Around):
    """Counts calls and the bytes read by key, and remembers the ranges asked for."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.read_bytes: Counter[str] = Counter()
        self.ranges: list[tuple[str, ByteRange]] = []
        self._adding = threading.Lock()

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        with self._adding:
            self.calls[call.operation] += 1
        result = work()
        with self._adding:
            self.read_bytes[call.key] += len(result) if isinstance(result, bytes) else call.read_bytes
        return result

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        self.ranges += [(key, piece) for piece in ranges]
        return super().get_ranges(key, ranges, version=version)


class Flaky(Around):
    """Fails as planned: each call takes the next of *failures*, None meaning that it succeeds."""

    def __init__(self, inner: Store, failures: Sequence[str | None]) -> None:
        super().__init__(inner)
        self._failures = iter(failures)
        self.after: bool = False
        """Fail after the work is done instead of before it, as a lost answer does."""

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        reason = next(self._failures, None)
        result = work() if reason is None or self.after else None
        if reason is not None:
            raise transient(f"{self.url}: {call.key!r}: planned", reason)
        return result

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        reason = next(self._failures, None)
        for number, info in enumerate(self.inner.list(prefix)):
            if reason is not None and number == 2:
                raise transient(f"{self.url}: {prefix!r}: planned", reason)
            yield info


class Gated(Counting):
    """Holds back whole pieces of objects (ranges from *held_bytes_min* on) until `open` is set; short ranges pass."""

    def __init__(self, inner: Store, *, held_bytes_min: int = 1 << 20) -> None:
        super().__init__(inner)
        self.open = threading.Event()
        self._held_bytes_min = held_bytes_min

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        if sum(map(len, ranges)) >= self._held_bytes_min:
            assert self.open.wait(60)
        return super().get_ranges(key, ranges, version=version)


def refs_of(store: Store, *, digests: bool = False) -> list[ObjectRef]:
    """Every object of a store as an index would name it."""
    return [
        ObjectRef(info.key, info.size, info.version, digest_of(store.get(info.key)) if digests else None)
        for info in store.list()
    ]


def until(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Wait until something holds that another thread or process brings about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


class Dataset:
    """What `Cache.warm` needs of a dataset."""

    def __init__(self, store: Store, refs: Sequence[ObjectRef]) -> None:
        self.store = store
        self._refs = refs

    def objects(self) -> Sequence[ObjectRef]:
        return self._refs
