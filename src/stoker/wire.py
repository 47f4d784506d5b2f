"""Messages between a trainer and its background processes over a socket pair: a pickle each, descriptors beside it.

The socket keeps messages apart (SEQPACKET), so that one system call sends or takes one. Both ends are this program,
started by each other, so pickle is safe here. A message over INLINE_BYTES_MAX (variable-size fields, many long keys)
travels in a memfd of its own whose descriptor is passed along: a socket would copy it twice and could block the sender.
"""

from __future__ import annotations

import array
import errno
import mmap
import os
import pickle
import select
import socket
from typing import Any

from stoker.errors import StokerError

INLINE_BYTES_MAX = 32_768
"""Well under the 208 KiB that a message of a Unix socket may have by default."""
DESCRIPTORS_MAX = 4
_INLINE, _CARRIED = b"I", b"C"
_SPACE = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)


def send(link: socket.socket, message: object, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; blocks while the other side's buffer is full. OSError when the other side is gone."""
    data = pickle.dumps(message, protocol=5)
    if len(data) <= INLINE_BYTES_MAX:
        _send(link, _INLINE + data, descriptors)
        return
    carrier = os.memfd_create("stoker-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(carrier), "wb") as out:
            out.write(data)
        _send(link, _CARRIED, (carrier, *descriptors))
    finally:
        os.close(carrier)


def _send(link: socket.socket, data: bytes, descriptors: tuple[int, ...]) -> None:
    if descriptors:
        socket.send_fds(link, [data], list(descriptors))
    else:
        link.send(data)


def receive(link: socket.socket, flags: int = 0) -> tuple[Any, list[int]]:
    """The next message and the descriptors that came with it. EOFError when the other side is gone, OSError when this
    process has no descriptor left for a long message, which is lost.

    With MSG_DONTWAIT among *flags*: BlockingIOError when there is none yet.
    """
    try:
        data, ancillary, _, _ = link.recvmsg(INLINE_BYTES_MAX + 1, _SPACE, flags)
    except ConnectionResetError:  # it went with words of ours unread: told once, before its own last words
        data, ancillary, _, _ = link.recvmsg(INLINE_BYTES_MAX + 1, _SPACE, flags)
    if not data:
        raise EOFError
    descriptors = [number for _, _, packed in ancillary for number in array.array("i", packed)]
    if data[:1] == _INLINE:
        return pickle.loads(memoryview(data)[1:]), descriptors
    if not descriptors:
        raise OSError(errno.EMFILE, "the memory of a long message could not be taken over: no descriptor is free")
    carrier = descriptors.pop(0)
    try:
        with mmap.mmap(carrier, 0, access=mmap.ACCESS_READ) as payload:
            return pickle.loads(payload), descriptors
    finally:
        os.close(carrier)


class Waiter:
    """Waits for a message or for the death of a process, whichever comes first.

    End of file alone is not enough: a process that the user's code forked may hold a copy of the other end open. A
    pidfd in the same poll sees the death itself."""

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
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def pair(user: str) -> tuple[socket.socket, socket.socket]:
    """Two connected ends; the second is meant to be inherited by a child. *user*: who to name where there are none."""
    if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        raise StokerError(f"{user} needs Linux 5.3 or newer (memfd, pidfd)", "elsewhere pack, index and plan work")
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
