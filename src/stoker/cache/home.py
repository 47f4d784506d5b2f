"""The cache's folder as one process sees it: entries, half-written files, the session that says this process lives.

    objects/ab/<name>   entries: whole, verified, never changed
    tmp/<session>.<n>   half-written; swept when their session is dead
    sessions/<session>  locked by its process for as long as that lives, whatever container or user it belongs to
    ledger.sqlite, lock

A process may die on any line: what it wrote is then a file in tmp/ without a living session, or an entry that the
ledger has not seen but whose promise it holds. The next one to open the cache settles both.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

from stoker.cache.ledger import Ledger
from stoker.cache.locks import LockFile, is_locked
from stoker.cache.policy import DISK, Room
from stoker.errors import CacheError
from stoker.events import Recorder

_LEDGER_BYTE, _SESSIONS_BYTE, _FIRST_ENTRY_BYTE = 0, 1, 16
LEDGER = "ledger.sqlite"


class Home:
    """An opened cache folder. Its parts belong to the process that opened it."""

    def __init__(self, path: Path, *, limit: int | None, free_min: int, read_only: bool) -> None:
        self.path = path
        self.limit = limit
        self.free_min = free_min
        self.read_only = read_only
        self.pid = os.getpid()
        self.session = f"{self.pid}-{uuid.uuid4().hex[:12]}"
        self._warned = self._warned_full = False
        self.refusal = ""
        """Why an object was refused, the last time that one was."""
        self._guard = threading.Lock()
        self._busy: set[int] = set()
        if not read_only:
            self._folder_mode = path.stat().st_mode & 0o777
            self._open()

    def _open(self) -> None:
        for name in ("objects", "tmp", "sessions"):
            self._make_folder(self.path / name)
        self._locks = LockFile(self.path / "lock", mode=self._file_mode)
        self.ledger = self._open_ledger()
        self._locks.lock(_SESSIONS_BYTE)  # nobody may take a session for dead between its making and its locking
        try:
            self._mine = LockFile(self.path / "sessions" / self.session, mode=self._file_mode)
            self._mine.lock(0)
            self._sweep()
        finally:
            self._locks.unlock(_SESSIONS_BYTE)

    def close(self) -> None:
        """End the session."""
        if self.read_only or self.pid != os.getpid():
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            self.ledger.end_session(self.session)
        with contextlib.suppress(OSError, sqlite3.Error):
            self.ledger.close()
        with contextlib.suppress(OSError):
            (self.path / "sessions" / self.session).unlink(missing_ok=True)
        self._mine.close()
        self._locks.close()

    @property
    def _file_mode(self) -> int:
        """Who may use the folder may use what is in it, whatever the umask says."""
        return self._folder_mode & 0o666

    def entry(self, name: str) -> Path:
        """Where an entry lies, if it does."""
        return self.path / "objects" / name[:2] / name

    def holds(self, name: str, count: int) -> bool:
        """Whether the entry is there with that many bytes."""
        return self._size(name) == count

    def _size(self, name: str) -> int | None:
        """Bytes of an entry; None when there is none."""
        try:
            return self.entry(name).stat().st_size
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        """Single flight: True inside when no other process and no other reader works on the entry."""
        byte = _FIRST_ENTRY_BYTE + int(name[:15], 16)
        with self._guard:  # the file's locks exclude other processes, not other threads of this one
            held = byte not in self._busy and self._locks.try_lock(byte)
            if held:
                self._busy.add(byte)
        try:
            yield held
        finally:
            if held:
                with self._guard, contextlib.suppress(OSError, CacheError):
                    self._busy.discard(byte)
                    self._locks.unlock(byte)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[tuple[Path, int]]:
        """A new file to fill, gone at the end unless it was renamed."""
        path = self.path / "tmp" / f"{self.session}.{uuid.uuid4().hex[:12]}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._file_mode)
        try:
            os.fchmod(fd, self._file_mode)
            yield path, fd
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def publish(self, temporary: Path, fd: int, name: str) -> None:
        """Give a filled file its name. Its bytes are on disk before; a name lost with the machine is but a miss."""
        os.fsync(fd)
        target = self.entry(name)
        self._make_folder(target.parent)
        temporary.replace(target)

    def remove(self, name: str) -> None:
        """Take out an entry that is not what it should be."""
        if not self.read_only:
            self.entry(name).unlink(missing_ok=True)
            self.ledger.forget(name)

    def room(self, held: int, promised: int) -> Room:
        """What may still come in. Promised bytes count as taken from the disk, though some are already."""
        disk = os.statvfs(self.path)
        return Room(
            limit=self.limit,
            used=held + promised,
            disk_free=disk.f_bavail * disk.f_frsize - promised,
            free_min=self.free_min,
            inodes_free=disk.f_favail if disk.f_files else None,
        )

    def say_full(self) -> None:
        """Warn once where the disk refused the last object: a limit was wished for, a full disk was not."""
        if self.refusal.startswith(DISK) and not self._warned_full:
            self._warned_full = True
            text = f"cache {self.path}: {self.refusal}; what does not fit is read without the cache"
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def degrade(self, error: Exception, recorder: Recorder) -> None:
        """Report that the cache's disk failed: counted each time, said once."""
        if self._warned:
            recorder.count("cache.degraded")
        else:
            self._warned = True
            warn_degraded(self.path, error, recorder)

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir()
        except FileExistsError:
            return
        folder.chmod(self._folder_mode)

    def _open_ledger(self) -> Ledger:
        """The ledger; one that is missing or damaged is made anew from the entries that are there."""
        path = self.path / LEDGER
        self._locks.lock(_LEDGER_BYTE)
        try:
            fresh = not path.exists()
            try:
                ledger = Ledger(path)
            except sqlite3.OperationalError:
                raise  # the disk is full or locked: not the ledger's fault
            except sqlite3.DatabaseError:
                fresh = True
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(LEDGER + suffix).unlink(missing_ok=True)
                ledger = Ledger(path)
            if fresh:
                path.chmod(self._file_mode)
                ledger.enter_found(scan(self.path))
            return ledger
        finally:
            self._locks.unlock(_LEDGER_BYTE)

    def _sweep(self) -> None:
        """Settle what dead processes left: half-written files, promises, leases. Needs the lock on sessions."""
        known = {path.name for path in (self.path / "sessions").iterdir()}
        left = {path: path.name.partition(".")[0] for path in (self.path / "tmp").iterdir()}
        sessions = known | set(left.values()) | self.ledger.sessions()
        dead = {
            session
            for session in sessions
            if session != self.session and not is_locked(self.path / "sessions" / session, 0)
        }
        for path, session in left.items():
            if session in dead:
                path.unlink(missing_ok=True)
        for session in dead:
            self.ledger.end_session(session, self._size)
            (self.path / "sessions" / session).unlink(missing_ok=True)


def scan(path: Path) -> Iterator[tuple[str, int]]:
    """Name and size of every entry of a cache folder, by looking."""
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((path / "objects").iterdir()):
            with os.scandir(folder) as found:
                yield from ((entry.name, entry.stat().st_size) for entry in found if entry.is_file())


def warn_degraded(path: Path, error: Exception, recorder: Recorder) -> None:
    """Say that reading goes on without the cache."""
    recorder.count("cache.degraded")
    warnings.warn(f"cache {path}: {error}; reading goes on without it", RuntimeWarning, stacklevel=3)


def open_home(path: Path, *, limit: int | None, free_min: int, read_only: bool) -> Home:
    """Open the cache folder, made if missing. CacheError where that cannot be; a failing disk raises as it does."""
    try:
        if not path.is_dir() and not read_only:
            path.mkdir(parents=True, exist_ok=True)
        if not path.is_dir():
            raise CacheError(f"cache {path}: there is no such folder", "a read-only cache must exist already")
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise CacheError(
            f"cache {path}: cannot be made: {error.strerror}", "choose a folder that you may write"
        ) from error
    return Home(path, limit=limit, free_min=free_min, read_only=read_only)
