"""An index is mapped, not loaded: what processes of a node do with it costs none of them memory of its own."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.index import Index
from stoker.order import build_order
from support_format import small_index

SHARDS, COUNT = 40, 5_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 200,000 samples."""
    made = tmp_path_factory.mktemp("index")
    small_index(made, shards=SHARDS, count=COUNT)
    return made / "index"


def private_bytes() -> int:
    """Memory that is this process's alone and was written to: copies of pages count, mapped files do not."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def grown_in_a_child(work: Callable[[], None], first: Callable[[], None] = lambda: None) -> int:
    """By how many bytes a forked child's private memory grows while it does *work*, after *first*.

    *first* is a little of the same, so that what a first use takes (arrow's pools, imports) isn't counted. Python's
    collector is off: it writes to every object that the tests before this one left, thousands of pages.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gc.disable()
        first()
        before = private_bytes()
        work()
        os.write(writer, str(private_bytes() - before).encode())
        os._exit(0)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    told = os.read(reader, 100)
    os.close(reader)
    return int(told)


def looked_at(index: Index, samples: NDArray[np.int64]) -> None:
    """Each sample's key, place and column: what a worker of an epoch reads of an index.

    An array is walked, and not a list: a list's numbers are objects, whose reference counts a reader writes.
    """
    for sample in samples:
        assert index.key(int(sample)).startswith("sample-")
        assert index.place(int(sample), "jpg") is not None
        assert index.value(int(sample), "label") is not None


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_worker_that_reads_everywhere_copies_nothing(folder: Path) -> None:
    """A forked worker's private memory stays, although it touched samples all over: no list is counted up."""
    index = Index(folder)
    order = build_order("full", shard_starts=index.shard_starts, seed=1)
    shuffled = order.at(0, np.arange(0, len(index), 7))
    looked_at(index, shuffled)
    grown = grown_in_a_child(lambda: looked_at(index, shuffled), first=lambda: looked_at(index, shuffled[:100]))
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size > 4 << 20
    assert grown < size / 8


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_opening_an_index_loads_none_of_it(folder: Path) -> None:
    """Every process of a node that opens it maps the same pages: its own memory grows by a small part of the file."""
    held: list[Index] = []
    grown = grown_in_a_child(lambda: held.append(Index(folder)), first=lambda: looked_at(Index(folder), np.arange(9)))
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert grown < size / 20


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_list_of_the_same_would_be_seen(folder: Path) -> None:
    """The measure sees what it is there for: as a list of strings, the same keys are copied by who only reads them."""
    index = Index(folder)
    keys = [index.key(sample) for sample in range(len(index))]

    def read() -> None:
        assert all(key.startswith("sample-") for key in keys[::7])

    assert grown_in_a_child(read) > len(index) * 50
