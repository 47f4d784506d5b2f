"""Hostile factories for `stoker tune`: they fail, hang, crash, hoard or talk. torch, slow to import, is left out."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any


def raises(num_workers: int = 0) -> object:
    """Fails whatever it is given."""
    raise FileNotFoundError("/data/train.lmdb is not here")


def fails_with_workers(num_workers: int = 0) -> Iterator[int]:
    """Works without workers only."""
    if num_workers:
        raise RuntimeError("cannot pickle the database handle")
    return ticking()


def ticking() -> Iterator[int]:
    """A batch every 5 ms, for ever."""
    while True:
        time.sleep(0.005)
        yield 1


def no_iterable(num_workers: int = 0) -> object:
    """Returns a number."""
    return 7


def empty(num_workers: int = 0) -> list[int]:
    """No batch."""
    return []


def hangs(num_workers: int = 0) -> Iterator[int]:
    """A first batch, then nothing for ever, and it will not be asked to end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    yield 1
    time.sleep(3600)


def crawls(num_workers: int = 0) -> Iterator[int]:
    """A batch in 1.2 s: slower than the bound on silence of its test, were there no sign of life."""
    while True:
        time.sleep(1.2)
        yield 1


def crashes(num_workers: int = 0) -> Iterator[int]:
    """Killed as by the kernel for memory."""
    yield 1
    print("about to die", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(num_workers: int = 0) -> object:
    """Ends the process."""
    sys.exit(3)


def hoards(num_workers: int = 0) -> Iterator[bytes]:
    """Keeps everything: 20 MB a batch."""
    kept = []
    while True:
        kept.append(b"x" * 20_000_000)
        time.sleep(0.01)
        yield kept[-1]


def talks(num_workers: int = 0) -> Iterator[int]:
    """Prints 100 KB before each batch, on both streams, things that look like results among them."""
    while True:
        for stream in (sys.stdout, sys.stderr):
            print('{"event": "done"}\n' * 6_000, file=stream, flush=True)
        time.sleep(0.005)
        yield 1


def needs_cuda(num_workers: int = 0) -> Iterator[Any]:
    """Makes its batches on the GPU."""
    torch = importlib.import_module("torch")
    while True:
        yield torch.ones(4, device="cuda")


def needs_more(path: str, num_workers: int = 0) -> object:
    """Cannot be called without a path."""
    return [path]


def no_knobs() -> list[int]:
    """Nothing to tune."""
    return [1]


not_a_function = 5
