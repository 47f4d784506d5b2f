"""How ranks agree: short messages through a key-value server of rank 0, and no collective at all.

A collective over a group that lost a member, or timed out once, is broken for good, and each rank waits for the
slowest. Here every wait has a deadline of its own and names the rank that did not answer; a rank that was stopped and
wakes up later finds the verdict that was reached without it. Messages are pickles between the processes of one job,
like torch's own object collectives; the server listens where the job's rendezvous does.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from stoker.clock import SYSTEM
from stoker.errors import CheckpointError, UsageError, reason_of

BOOT_S_MAX = 300.0
"""Seconds in which all ranks must have made their Checkpointer."""


class Peers(Protocol):
    """The ranks of a job, seen from one of them."""

    @property
    def rank(self) -> int:
        """Which one this is."""
        ...

    @property
    def world_size(self) -> int:
        """How many there are."""
        ...

    def gather(self, topic: str, value: object, timeout_s: float) -> list[Any]:
        """Every rank's value at rank 0, an empty list elsewhere. CheckpointError names a rank that did not answer."""
        ...

    def spread(self, topic: str, value: object, timeout_s: float) -> Any:
        """Rank 0's value at every rank."""
        ...

    def another(self) -> Peers:
        """The same ranks for another thread."""
        ...


@dataclass(frozen=True)
class Alone:
    """A job of one process."""

    rank: int = 0
    world_size: int = 1

    def gather(self, topic: str, value: object, timeout_s: float) -> list[Any]:
        return [value]

    def spread(self, topic: str, value: object, timeout_s: float) -> Any:
        return value

    def another(self) -> Alone:
        return self


class ByServer:
    """Ranks that talk through torch's TCPStore, one connection a thread."""

    def __init__(self, rank: int, world_size: int, address: tuple[str, int], server: Any) -> None:
        self.rank, self.world_size = rank, world_size
        self._address, self._server = address, server
        self._client = _store(address, is_master=False)
        self._read: list[list[str]] = []

    def gather(self, topic: str, value: object, timeout_s: float) -> list[Any]:
        self._set(f"{topic}/{self.rank}", value)
        if self.rank != 0:
            return []
        keys = [f"{topic}/{rank}" for rank in range(self.world_size)]
        found = [pickle.loads(self._get(key, timeout_s, f"rank {rank}")) for rank, key in enumerate(keys)]
        self._forget(keys)
        return found

    def spread(self, topic: str, value: object, timeout_s: float) -> Any:
        key = f"{topic}/all"
        if self.rank == 0:
            self._set(key, value)
            self._forget([key])
            return value
        return pickle.loads(self._get(key, timeout_s, "rank 0"))

    def another(self) -> ByServer:
        return ByServer(self.rank, self.world_size, self._address, self._server)

    def _set(self, key: str, value: object) -> None:
        try:
            self._client.set(key, pickle.dumps(value))
        except RuntimeError as error:  # torch's DistNetworkError
            raise CheckpointError(
                f"rank 0, through which ranks agree, is gone: {reason_of(error)} ({key})",
                "see why rank 0 ended; the checkpoints that were committed are whole",
            ) from error

    def _get(self, key: str, timeout_s: float, who: str) -> bytes:
        self._client.set_timeout(timedelta(seconds=timeout_s))
        began_s = SYSTEM.monotonic()
        try:
            return bytes(self._client.get(key))
        except RuntimeError as error:  # torch's DistStoreError (late) and DistNetworkError (gone)
            spent_s = SYSTEM.monotonic() - began_s
            if spent_s < 0.9 * timeout_s:
                raise CheckpointError(
                    f"rank 0, through which ranks agree, is gone: {reason_of(error)}; "
                    f"{who} was waited for {spent_s:.1f} s ({key})",
                    "see why rank 0 ended; the checkpoints that were committed are whole",
                ) from error
            raise CheckpointError(f"{who} did not answer within {timeout_s:.0f} s ({key})") from error

    def _forget(self, keys: list[str]) -> None:
        """Delete what was read a few rounds ago: a late rank still finds the latest verdicts."""
        self._read.append(keys)
        if len(self._read) > 64:
            for key in self._read.pop(0):
                self._client.delete_key(key)


def _distributed() -> Any:
    """torch.distributed, if this process uses it: found, not imported."""
    module = sys.modules.get("torch.distributed")
    ready = module is not None and module.is_available() and module.is_initialized()
    return module if ready else None


def _store(address: tuple[str, int], *, is_master: bool) -> Any:
    distributed = _distributed()
    return distributed.TCPStore(
        address[0], address[1], None, is_master, timedelta(seconds=BOOT_S_MAX), wait_for_workers=False
    )


def find_peers() -> Peers:
    """The ranks of torch.distributed, when it is initialised, else this process alone. A call of all ranks together."""
    distributed = _distributed()
    if distributed is None:
        declared = os.environ.get("WORLD_SIZE", "1")
        if declared.isdigit() and int(declared) > 1:
            raise UsageError(
                f"WORLD_SIZE is {declared}, but torch.distributed is not initialised",
                "call torch.distributed.init_process_group before stoker.Checkpointer",
            )
        return Alone()
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if world == 1:
        return Alone()
    group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=BOOT_S_MAX))
    server, told = None, [("", 0)]
    if rank == 0:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        server = _store((host, 0), is_master=True)
        told = [(host, int(server.port))]
    distributed.broadcast_object_list(told, src=0, group=group)
    peers = ByServer(rank, world, told[0], server)
    distributed.destroy_process_group(group)
    return peers


@dataclass(frozen=True, slots=True)
class Place:
    """Which ranks write to the same disk as this one."""

    ranks: tuple[int, ...]
    world_size: int

    @property
    def leader(self) -> int:
        """The rank that commits and keeps house here."""
        return self.ranks[0]

    @property
    def shared(self) -> bool:
        """Whether all ranks are here."""
        return len(self.ranks) == self.world_size


def find_place(peers: Peers, root: Path) -> Place:
    """Found out by looking: every rank puts a file into its local folder and lists whose it sees."""
    if peers.world_size == 1:
        return Place((0,), 1)
    run = peers.spread("place/run", uuid.uuid4().hex, BOOT_S_MAX)
    mine = root / f".peer-{run}-{peers.rank}"
    mine.write_bytes(b"")
    try:
        peers.gather("place/there", True, BOOT_S_MAX)
        peers.spread("place/look", True, BOOT_S_MAX)
        ranks = sorted(int(path.name.rpartition("-")[2]) for path in root.glob(f".peer-{run}-*"))
        peers.gather("place/seen", True, BOOT_S_MAX)
        peers.spread("place/done", True, BOOT_S_MAX)
    finally:
        with contextlib.suppress(FileNotFoundError):
            mine.unlink()
    return Place(tuple(ranks), peers.world_size)


def failure_of(votes: Sequence[Any]) -> str | None:
    """The reasons of all ("failed", reason) votes: where ranks share a folder, one's failure is another's missing file.
    None when all is well."""
    reasons = [f"rank {rank}: {vote[1]}" for rank, vote in enumerate(votes) if vote[0] == "failed"]
    return "; ".join(reasons) or None
