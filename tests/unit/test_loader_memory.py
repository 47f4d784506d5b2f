"""Slots and slab: where arrays lie, and when a slot is free again."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stoker import machine
from stoker.errors import FeederError, UsageError
from stoker.loader import slab as slab_module
from stoker.loader.layout import ALIGN_BYTES, PAGE_BYTES, lay_out
from stoker.loader.slab import Slab, create

LAYOUT = lay_out(4, {"image": ((3, 2), "uint8"), "cls": ((), "int64")}, mask=True)


@pytest.fixture
def slab() -> Slab:
    """A slab with four slots."""
    return Slab(create(LAYOUT, 4), LAYOUT, 4)


def test_arrays_are_aligned_and_do_not_overlap() -> None:
    """Every array starts on a cache line, after the end of the one before."""
    end = 0
    for place in LAYOUT.arrays:
        assert place.offset % ALIGN_BYTES == 0
        assert place.offset >= end
        end = place.offset + place.nbytes
    assert end <= LAYOUT.nbytes
    assert LAYOUT.nbytes % PAGE_BYTES == 0
    assert [place.name for place in LAYOUT.arrays] == ["__index__", "__mask__", "image", "cls"]


def test_python_objects_cannot_lie_in_a_slot() -> None:
    """An object array is refused by name."""
    with pytest.raises(UsageError, match="'words'"):
        lay_out(4, {"words": ((), "object")}, mask=False)


def test_both_sides_see_the_same_bytes() -> None:
    """What the feeder writes into a slot the trainer reads, and slots do not touch each other."""
    descriptor = create(LAYOUT, 4)
    feeder, trainer = Slab(os.dup(descriptor), LAYOUT, 4), Slab(descriptor, LAYOUT, 4)
    feeder.arrays(1)["cls"][:] = [1, 2, 3, 4]
    feeder.arrays(2)["cls"][:] = 9
    assert trainer.arrays(1)["cls"].tolist() == [1, 2, 3, 4]
    feeder.board()[3] = 77
    assert trainer.board()[3] == 77
    assert trainer.arrays(0)["cls"].tolist() == [0, 0, 0, 0]


KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda t: t,
    "a slice": lambda t: t[1:2],
    "a reshaped view": lambda t: t.reshape(-1)[3:5],
    "a view of another dtype": lambda t: t.view(torch.int8),
    "detached": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "a slice of numpy": lambda t: t.numpy()[1:],
    "memoryview": lambda t: memoryview(t.numpy()),
    "the storage": lambda t: t.untyped_storage(),
    "in containers": lambda t: {"x": [(t[0],)]},
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS.keys())
def test_a_slot_is_free_when_the_last_reference_goes(slab: Slab, keep: Callable[[torch.Tensor], Any]) -> None:
    """Anything that still shows the slot's bytes holds the slot; the last one to go frees it."""
    freed: deque[int] = deque()
    memory = slab.hand_out(2, freed)
    tensor = torch.from_numpy(LAYOUT.views(memory)["image"])
    kept = keep(tensor)
    del memory, tensor
    gc.collect()
    assert not freed
    del kept
    gc.collect()
    assert list(freed) == [2]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: t.clone(), lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_does_not_hold_the_slot(slab: Slab, copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Copies have memory of their own."""
    freed: deque[int] = deque()
    memory = slab.hand_out(0, freed)
    kept = copied(torch.from_numpy(LAYOUT.views(memory)["image"]))
    del memory
    gc.collect()
    assert list(freed) == [0]
    assert kept.shape == (4, 3, 2)


def test_closing_leaves_batches_in_use_alone(slab: Slab) -> None:
    """A batch outlives its loader."""
    slab.arrays(1)["cls"][:] = 5
    memory = slab.hand_out(1, deque())
    slab.close()
    assert LAYOUT.views(memory)["cls"].tolist() == [5, 5, 5, 5]


def test_a_forked_child_frees_nothing(slab: Slab) -> None:
    """The child inherits the finalizer, but the batch is its parent's."""
    freed: deque[int] = deque()
    memory = slab.hand_out(1, freed)
    child = os.fork()
    if child == 0:
        del memory
        gc.collect()
        os._exit(len(freed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del memory
    gc.collect()
    assert list(freed) == [1]


def test_too_much_memory_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cgroup would kill instead of refusing, so the size is compared with what is free."""
    monkeypatch.setattr(slab_module, "memory_bytes_free", lambda: 1000)
    with pytest.raises(FeederError, match=r"needs .*4 slots.*only 1 kB|4 slots"):
        create(LAYOUT, 4)
    assert machine.memory_bytes_free() > 1000


def test_a_slab_has_no_name() -> None:
    """Nothing appears in /dev/shm."""
    before = set(os.listdir("/dev/shm"))
    kept = Slab(create(LAYOUT, 4), LAYOUT, 4)
    assert set(os.listdir("/dev/shm")) == before
    kept.close()


def test_an_empty_field_lies_well() -> None:
    """A scalar string array or zero-size shape does not break the layout."""
    layout = lay_out(2, {"none": ((0,), "float32")}, mask=False)
    assert layout.views(bytearray(layout.nbytes))["none"].shape == (2, 0)
    assert layout.arrays[0].dtype == np.int64
