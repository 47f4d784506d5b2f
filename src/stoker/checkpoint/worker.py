"""The background processes of a rank: `python -P -m stoker.checkpoint.worker ROLE SOCKET TRAINER_PID`.

"write" takes staged memory and writes it to the local disk; "keep" uploads, verifies and expires. Neither imports torch
or the user's `__main__`: what they move are bytes. Both run at low priority (SCHED_BATCH and nice, as the feeder does:
without both a woken thread preempts the training step), and end when the trainer does, at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import mmap
import os
import select
import signal
import socket
import sys
import threading
from typing import Any

from stoker.checkpoint.keeper import Keeper, KeeperJob
from stoker.checkpoint.writer import WriteJob, write_rank
from stoker.errors import CheckpointError, StokerError
from stoker.machine import give_way
from stoker.wire import Waiter, receive, send

NICE = {"write": 5, "keep": 10}
"""Writing decides how soon a state is durable; reading back and uploading can wait."""
FOREVER_S = 86_400.0


class _Writer:
    """The role "write": maps each staging memory once."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._image: mmap.mmap | None = None
        self._staged = 0
        """Bytes of it, from the first, that are those of the save under way."""

    def answer(self, kind: str, value: Any, descriptors: list[int]) -> None:
        """One message of the trainer."""
        if kind == "image":
            if self._image is not None:
                self._image.close()
            self._image = mmap.mmap(descriptors[0], value, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
            os.close(descriptors[0])
        elif kind == "write":
            job, self._staged = value
            send(self._link, self._write(job))
        # "staged", of a write that failed before all was copied: it was answered

    def _wait_staged(self, nbytes: int) -> None:
        while self._staged < nbytes:
            (_, self._staged), _ = receive(self._link)  # the trainer says nothing else meanwhile

    def _write(self, job: WriteJob) -> tuple[str, object]:
        view = memoryview(b"") if self._image is None else memoryview(self._image)
        try:
            return "written", write_rank(job, view, self._wait_staged)
        except CheckpointError as error:
            return "failed", error
        finally:
            view.release()


def write(link: socket.socket, waiter: Waiter) -> None:
    """Serve until the trainer is gone."""
    writer = _Writer(link)
    while True:
        while not waiter.wait(FOREVER_S):
            pass
        (kind, value), descriptors = receive(link)
        writer.answer(kind, value, descriptors)


def keep(link: socket.socket, waiter: Waiter) -> None:
    """Look after the tiers when told to, and again on its own while something is left to do."""
    while not waiter.wait(FOREVER_S):
        pass
    (_, job), _ = receive(link)
    assert isinstance(job, KeeperJob)
    keeper = Keeper(job)
    wait_s, asked = FOREVER_S, 0  # not before the first word: `resume` may still be fetching what a look would sweep
    while True:
        while waiter.wait(wait_s):  # all that was asked meanwhile is one look
            (_, asked), _ = receive(link)
            wait_s = 0.0
        try:
            report = keeper.cycle()
        except (StokerError, OSError) as error:  # a disk that is full or dying: looked at again later
            send(link, ("trouble", (asked, str(error))))
            wait_s = job.retry_s
        else:
            send(link, ("report", (asked, report)))
            wait_s = FOREVER_S if report.settled else job.retry_s


def end_with(trainer: int) -> None:
    """End this process as soon as the trainer is gone, whatever is under way: an upload may take hours."""
    descriptor = os.pidfd_open(trainer)

    def watch() -> None:
        select.select([descriptor], [], [])
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="stoker-trainer-watch").start()


def main() -> None:
    """The process."""
    role, descriptor, trainer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle; its end is ours
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher signals the whole group, while `wait()` still needs us
    logging.basicConfig(format="%(message)s")
    give_way(NICE[role])
    try:
        end_with(trainer)
    except ProcessLookupError:
        return
    with socket.socket(fileno=descriptor) as link, contextlib.suppress(EOFError, BrokenPipeError, ProcessLookupError):
        waiter = Waiter(link, trainer)
        send(link, ("ready", os.getpid()))
        {"write": write, "keep": keep}[role](link, waiter)


if __name__ == "__main__":
    main()
