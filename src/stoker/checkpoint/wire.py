"""Messages between the trainer and its background processes: a pickle in a memfd each, passed over a socket pair.

Both ends are this program, started by each other, so pickle is safe here. Staging memory is passed as a descriptor,
once; tensors never travel. A pidfd beside the socket sees the other side's death even when a forked child of the user's
holds the socket open.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import socket
from collections.abc import Sequence
from typing import Any

DESCRIPTORS_MAX = 4


def send(link: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send one message and descriptors beside it. OSError when the other side is gone."""
    carrier = os.memfd_create("stoker-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(carrier), "wb") as out:
            pickle.dump(message, out, protocol=5)
        socket.send_fds(link, [b"m"], [carrier, *descriptors])
    finally:
        os.close(carrier)


def receive(link: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its descriptors, which the caller closes. EOFError when the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(link, 1, DESCRIPTORS_MAX + 1)
    except ConnectionError as error:
        raise EOFError from error
    if not data:
        raise EOFError
    carrier, *others = descriptors
    try:
        with mmap.mmap(carrier, 0, access=mmap.ACCESS_READ) as payload:
            return pickle.loads(payload), others
    finally:
        os.close(carrier)


class Ear:
    """Waits for a message of a process or for its death, whichever comes first."""

    def __init__(self, link: socket.socket, pid: int) -> None:
        self.link = link
        self._pidfd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._poll.register(self._pidfd, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """True when a message lies ready, False at the timeout; EOFError when the process died and left none."""
        ready = dict(self._poll.poll(max(0.0, timeout_s) * 1000))
        if ready.get(self.link.fileno(), 0) & select.POLLIN:
            return True
        if ready:
            raise EOFError
        return False

    def close(self) -> None:
        """Give the pidfd back."""
        with contextlib.suppress(OSError):
            os.close(self._pidfd)
