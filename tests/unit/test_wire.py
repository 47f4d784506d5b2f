"""Messages between trainer and feeder: whole, in order, large ones too, and never a wait for the dead."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stoker.wire import INLINE_BYTES_MAX, Waiter, pair, receive, send


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected ends."""
    here, there = pair("a test")
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX + 1, 5_000_000])
def test_a_message_arrives_as_it_was_sent(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    """Small ones travel inline, large ones in a memfd; the reader sees no difference, and no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))
    message = ("batch", {"keys": ["é"], "data": os.urandom(size)})
    send(ends[0], message)
    send(ends[0], "next")
    assert receive(ends[1]) == (message, [])
    assert receive(ends[1]) == ("next", [])
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_travel_with_a_message(ends: tuple[socket.socket, socket.socket]) -> None:
    """A memfd passed along is the same memory, also beside a payload of its own."""
    memory = os.memfd_create("test")
    os.write(memory, b"shared")
    send(ends[0], "x" * (INLINE_BYTES_MAX * 2), (memory,))
    message, descriptors = receive(ends[1])
    assert len(message) == INLINE_BYTES_MAX * 2
    assert os.pread(descriptors[0], 6, 0) == b"shared"
    os.close(memory)
    os.close(descriptors[0])


def test_the_end_is_an_eof(ends: tuple[socket.socket, socket.socket]) -> None:
    """A closed other side is EOFError, after all that it had sent."""
    send(ends[0], "last words")
    ends[0].close()
    assert receive(ends[1])[0] == "last words"
    with pytest.raises(EOFError):
        receive(ends[1])


def test_last_words_arrive_although_ours_were_never_read(ends: tuple[socket.socket, socket.socket]) -> None:
    """Who closes a socket with words unread resets it, and the reset is told before what lies in the queue."""
    send(ends[1], "are you there?")
    send(ends[0], "last words")
    send(ends[0], "x" * (INLINE_BYTES_MAX + 1))
    ends[0].close()
    assert receive(ends[1], socket.MSG_DONTWAIT)[0] == "last words"
    assert len(receive(ends[1])[0]) == INLINE_BYTES_MAX + 1
    for _ in range(2):
        with pytest.raises(EOFError):
            receive(ends[1], socket.MSG_DONTWAIT)


def test_a_death_is_seen_although_the_socket_is_still_open(ends: tuple[socket.socket, socket.socket]) -> None:
    """A forked process may hold the other end: the pidfd tells."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    waiter = Waiter(ends[0], process.pid)
    assert waiter.wait(0.01) is False
    process.send_signal(signal.SIGKILL)
    with pytest.raises(EOFError):
        waiter.wait(10)
    process.wait()
    waiter.close()


def test_a_last_message_is_read_before_the_death_is_told(ends: tuple[socket.socket, socket.socket]) -> None:
    """What a dying feeder said is not lost."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    waiter = Waiter(ends[0], process.pid)
    send(ends[1], "last words")
    process.communicate(b"go")
    assert waiter.wait(10) is True
    assert receive(ends[0])[0] == "last words"
    with pytest.raises(EOFError):
        waiter.wait(10)
    waiter.close()
