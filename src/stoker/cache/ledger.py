"""What the cache holds, who reads it and how much is promised: SQLite, shared by all processes of the node.

The files are the truth, the ledger is their sum: it can be deleted at any time and is rebuilt by a scan. So it need not
survive a power cut (synchronous=normal), and a hit never asks it. Every transaction begins IMMEDIATE: one that reads
first and writes later fails when another wrote in between, and no timeout helps.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stoker.clock import SYSTEM, Clock

VERSION = 1
BUSY_S_MAX = 60
"""Seconds to wait for another writer; a second or more happens."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL, url TEXT NOT NULL, key TEXT NOT NULL,
    admitted_s REAL NOT NULL, used_s REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS digests (name TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reservations (name TEXT PRIMARY KEY, session TEXT NOT NULL, bytes INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (name TEXT, session TEXT, PRIMARY KEY (name, session)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (one INTEGER PRIMARY KEY CHECK (one = 1), bytes INTEGER, entries INTEGER,
    hits INTEGER, misses INTEGER);
INSERT OR IGNORE INTO totals VALUES (1, 0, 0, 0, 0);
"""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all entries and, for hits and misses, over all processes that ever read."""

    bytes: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0


_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
_held: list[Ledger] = []


def _before_fork() -> None:
    """Let what goes on in SQLite end first: a child forked meanwhile would wait for its library's locks for ever."""
    for ledger in list(_ledgers):
        ledger._lock.acquire()
        _held.append(ledger)


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Ledger:
    """One connection, shared by the threads of a process."""

    def __init__(self, path: Path, *, immutable: bool = False, clock: Clock = SYSTEM) -> None:
        """Open the ledger, made if missing. *immutable*: for a read-only mount, where WAL cannot be opened."""
        self._clock = clock
        self._lock = threading.Lock()
        _ledgers.add(self)
        suffix = "?immutable=1" if immutable else ""
        self._db = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}{suffix}",
            uri=True,
            timeout=BUSY_S_MAX,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._prepare(immutable)
        except sqlite3.Error:
            self._db.close()
            raise

    def _prepare(self, immutable: bool) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, VERSION):
            raise sqlite3.DatabaseError(f"version {found} of the ledger is not known, expected {VERSION}")
        if not immutable:
            self._db.execute("PRAGMA journal_mode = wal")
            self._db.execute("PRAGMA synchronous = normal")
            if found == 0:
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        self._db.execute("SELECT bytes FROM totals").fetchone()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def totals(self) -> Totals:
        return Totals(*self._row("SELECT bytes, entries, hits, misses FROM totals"))

    def reserved_bytes(self) -> int:
        """Bytes promised to objects that are being written."""
        return int(self._row("SELECT total(bytes) FROM reservations")[0])

    def leases(self) -> dict[str, int]:
        """How many entries each session reads."""
        with self._lock:
            return dict(self._db.execute("SELECT session, count(*) FROM leases GROUP BY session"))

    def digest(self, name: str) -> str | None:
        """The digest learned of a foreign object when it was first read whole."""
        with self._lock:
            row = self._db.execute("SELECT digest FROM digests WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def reserve(self, session: str, name: str, need: int, refusal: Callable[[int, int], str]) -> str:
        """Promise *need* bytes to an object unless *refusal(bytes held, bytes promised)* gives a reason; gives that."""
        with self._transaction() as db:
            held = db.execute("SELECT (SELECT bytes FROM totals), (SELECT total(bytes) FROM reservations)").fetchone()
            reason = refusal(int(held[0]), int(held[1]))
            if not reason:
                db.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?)", (name, session, need))
            return reason

    def release(self, name: str) -> None:
        """Take back what was promised to an object that does not come."""
        with self._transaction() as db:
            db.execute("DELETE FROM reservations WHERE name = ?", (name,))

    def publish(self, name: str, count: int, *, url: str, key: str, digest: str | None) -> None:
        """Enter an object that lies in place now; *digest* is what was learned of it."""
        now = self._clock.wall()
        with self._transaction() as db:
            db.execute("DELETE FROM reservations WHERE name = ?", (name,))
            self._enter(db, [(name, count, url, key, now, now)])
            if digest is not None:
                db.execute("INSERT OR IGNORE INTO digests VALUES (?, ?)", (name, digest))

    def enter_found(self, found: Iterable[tuple[str, int]]) -> None:
        """Enter objects that a scan found in place: (name, bytes)."""
        now = self._clock.wall()
        with self._transaction() as db:
            self._enter(db, ((name, count, "", "", now, now) for name, count in found))

    def forget(self, name: str) -> None:
        """Strike out an entry that is no longer there."""
        with self._transaction() as db:
            row = db.execute("DELETE FROM entries WHERE name = ? RETURNING bytes", (name,)).fetchone()
            if row is not None:
                db.execute("UPDATE totals SET bytes = bytes - ?, entries = entries - 1", row)

    def note_reads(self, session: str, names: Iterable[str], hits: int, misses: int) -> None:
        """Lease *names* to a session, mark them as used, and add up its hits and misses."""
        now = self._clock.wall()
        rows = [(name, session, now) for name in names]
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO leases VALUES (?, ?)", (row[:2] for row in rows))
            db.executemany("UPDATE entries SET used_s = ? WHERE name = ?", ((now, name) for name, _, now in rows))
            db.execute("UPDATE totals SET hits = hits + ?, misses = misses + ?", (hits, misses))

    def end_session(self, session: str, arrived: Callable[[str], int | None] = lambda name: None) -> None:
        """Drop a session's leases and promises. *arrived(name)* gives the size of a promised object that is there."""
        now = self._clock.wall()
        with self._transaction() as db:
            db.execute("DELETE FROM leases WHERE session = ?", (session,))
            rows = db.execute("DELETE FROM reservations WHERE session = ? RETURNING name", (session,)).fetchall()
            sizes = ((str(row[0]), arrived(str(row[0]))) for row in rows)
            self._enter(db, [(name, size, "", "", now, now) for name, size in sizes if size is not None])

    def sessions(self) -> set[str]:
        """Every session that has a lease or a promise."""
        with self._lock:
            rows = self._db.execute("SELECT session FROM leases UNION SELECT session FROM reservations").fetchall()
        return {str(row[0]) for row in rows}

    def _row(self, query: str) -> tuple[int, ...]:
        with self._lock:
            return tuple(int(value) for value in self._db.execute(query).fetchone())

    @staticmethod
    def _enter(db: sqlite3.Connection, rows: Iterable[tuple[str, int, str, str, float, float]]) -> None:
        for row in rows:
            if db.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?, ?)", row).rowcount == 1:
                db.execute("UPDATE totals SET bytes = bytes + ?, entries = entries + 1", (row[1],))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # something failed on the way
                    with contextlib.suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
