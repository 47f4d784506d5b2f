"""The cache of one node as the user names it: a folder, a limit, and what is in it. Opened on first use per process."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from stoker.cache.admit import CACHE_FAILURES
from stoker.cache.cached import Cached
from stoker.cache.home import LEDGER, Home, open_home, scan, warn_degraded
from stoker.cache.ledger import Ledger, Totals
from stoker.cache.locks import is_locked
from stoker.cache.objects import Objects
from stoker.cache.policy import entry_name
from stoker.cache.warm import Shards, WarmReport, warm
from stoker.errors import CacheError, StokerError, UsageError
from stoker.events import SILENT, Recorder
from stoker.flow import Progress, no_progress
from stoker.index.entry import ObjectRef
from stoker.store.base import Store
from stoker.units import parse_bytes


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What a cache holds just now, over all processes of the node."""

    path: Path
    bytes: int
    """Bytes of whole entries."""
    entries: int
    reserved_bytes: int
    """Promised to objects that are being written."""
    limit: int | None
    """None: as much as the disk gives, less what must stay free."""
    free_bytes: int
    """Bytes that the disk has left."""
    readers: int
    """Processes that have the cache open."""
    leases: int
    """Entries that they read, each counted once per process."""
    hits: int
    misses: int
    """Reads served from the cache and past it, by all processes that have reported so far."""
    read_only: bool


class Cache:
    """A directory on a local disk in which objects are kept, shared by all processes and users of a node, no daemon.

    *limit*: most bytes of entries ("2TB"; None: what the disk gives). *free_min*: bytes that stay free for others.
    *read_only*: serve hits and admit nothing; None finds out. Nothing is evicted: what has no room is streamed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        limit: str | int | None = None,
        free_min: str | int = "1GB",
        read_only: bool | None = None,
    ) -> None:
        if not isinstance(path, str | Path) or not str(path) or "://" in str(path):
            raise UsageError(
                f"a cache is a folder on a disk of this machine, found {path!r:.80}", "as stoker.Cache('/nvme/stoker')"
            )
        self.path = Path(path).expanduser().absolute()
        self.limit = None if limit is None else parse_bytes(limit)
        self.free_min = parse_bytes(free_min)
        self._read_only = read_only
        self._opening = threading.Lock()
        self._homes: dict[int, Home] = {}

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r}, limit={self.limit}, free_min={self.free_min})"

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "limit": self.limit, "free_min": self.free_min, "read_only": self._read_only}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the state is the constructor's arguments

    def objects(self, store: Store, *, recorder: Recorder = SILENT) -> Objects:
        """The read side for datasets in *store*. CacheError where the folder cannot be a cache."""
        return Cached(store, self._home_or_none, recorder=recorder)

    def warm(
        self,
        dataset: Shards,
        *,
        workers: int | None = None,
        progress: Progress = no_progress,
        recorder: Recorder = SILENT,
    ) -> WarmReport:
        """Bring in every object that has room, in order of first use, verified. Several processes may do it at once."""
        if not hasattr(dataset, "store"):  # a mixture has several
            raise UsageError(
                f"a cache warms a dataset, found {dataset!r:.100}",
                "open it first: stoker.open(url); of a mixture, warm each part: cache.warm(mixture.parts[name])",
            )
        try:
            home = self._home()
            if home.read_only:
                raise CacheError(f"cache {self.path} is read-only", "warm it where it can be written")
            return warm(home, dataset, workers=workers, progress=progress, recorder=recorder)
        except StokerError:
            raise
        except OSError as error:
            raise CacheError(
                f"cache {self.path}: {error}", "see what the disk says: is it full, is it there?"
            ) from error
        except sqlite3.Error as error:
            raise CacheError(
                f"cache {self.path}: the ledger failed: {error}", "delete ledger.sqlite: it is rebuilt"
            ) from error

    def contains(self, store: Store, ref: ObjectRef) -> bool:
        """Whether the object is here, whole and of the indexed version."""
        name = entry_name(store.url, ref)
        entry = self.path / "objects" / name[:2] / name
        return entry.is_file() and entry.stat().st_size == (ref.expanded_size if ref.compression else ref.size)

    def index_folder(self) -> Path | None:
        """Where indexes of foreign datasets are kept; None where nothing can be written."""
        return None if self._is_read_only() else self.path / "index"

    def status(self) -> CacheStatus:
        """What is here just now. A cache that nobody used yet is empty."""
        totals, reserved, leases = self._ledger_says()
        sessions = self.path / "sessions"
        alive = {path.name for path in sessions.iterdir() if is_locked(path, 0)} if sessions.is_dir() else set()
        disk = os.statvfs(next(folder for folder in (self.path, *self.path.parents) if folder.exists()))
        return CacheStatus(
            path=self.path,
            bytes=totals.bytes,
            entries=totals.entries,
            reserved_bytes=reserved,
            limit=self.limit,
            free_bytes=disk.f_bavail * disk.f_frsize,
            readers=len(alive),
            leases=sum(count for session, count in leases.items() if session in alive),
            hits=totals.hits,
            misses=totals.misses,
            read_only=self._is_read_only(),
        )

    def _is_read_only(self) -> bool:
        if self._read_only is not None:
            return self._read_only
        return self.path.is_dir() and not os.access(self.path, os.W_OK)

    def _home(self) -> Home:
        """This process's own; a forked child opens another and leaves its parent's alone."""
        with self._opening:
            pid = os.getpid()
            if pid not in self._homes:
                home = open_home(self.path, limit=self.limit, free_min=self.free_min, read_only=self._is_read_only())
                self._homes[pid] = home
                weakref.finalize(self, home.close)
            return self._homes[pid]

    def _home_or_none(self, recorder: Recorder) -> Home | None:
        """None when the disk fails: then reading goes on without a cache."""
        try:
            return self._home()
        except CacheError:
            raise
        except CACHE_FAILURES as error:
            warn_degraded(self.path, error, recorder)
            return None

    def _ledger_says(self) -> tuple[Totals, int, dict[str, int]]:
        """Totals, promised bytes and leases by session; from a scan where the ledger cannot be read."""
        home = self._homes.get(os.getpid())
        path = self.path / LEDGER
        if home is None and not path.exists():
            return _scanned(self.path), 0, {}
        try:
            if home is not None and not home.read_only:
                return _told(home.ledger)
            with contextlib.closing(Ledger(path, immutable=self._is_read_only())) as ledger:
                return _told(ledger)
        except sqlite3.Error:
            return _scanned(self.path), 0, {}


def _told(ledger: Ledger) -> tuple[Totals, int, dict[str, int]]:
    return ledger.totals(), ledger.reserved_bytes(), ledger.leases()


def _scanned(path: Path) -> Totals:
    sizes = [size for _, size in scan(path)]
    return Totals(bytes=sum(sizes), entries=len(sizes))
