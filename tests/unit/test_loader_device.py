"""`Loader(device=…, device_transform=…)`: what becomes of a batch where it is moved to.

Without a GPU the device is the CPU, and the steps are the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.errors import UsageError
from stoker.loader import Loader
from stoker.torch import normalize
from support_dataset import write_shards

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 samples."""
    return write_shards(tmp_path_factory.mktemp("data"), 40)


def make(folder: Path, **options: Any) -> Loader:
    """A loader of images."""
    fields = {"image": stoker.image.CenterCrop(16), "cls": int}
    return Loader(stoker.open(folder), 8, **{"fields": fields, "seed": 5, "device": DEVICE, **options})


def rolled(batch: dict[str, Any]) -> dict[str, Any]:
    """Normalised pictures, mixed by the batch's own draw; a new field, and fields that nobody may set."""
    generator = torch.Generator().manual_seed(batch["__seed__"] % 2**63)
    lam = torch.rand((), generator=generator).item()
    image = normalize(batch["image"])
    assert not torch.is_grad_enabled()
    mixed = lam * image + (1 - lam) * image.roll(1, 0)
    return {"image": mixed, "lam": torch.full((len(image),), lam), "__index__": None}


def test_it_changes_what_lies_on_the_device(folder: Path) -> None:
    """The fields that it gives, the others as they were; the layout that convolutions like stays."""
    with make(folder) as plain, make(folder, device_transform=rolled) as changed:
        for before, after in zip(plain, changed, strict=True):
            image, lam = normalize(before["image"]), after["lam"][0].item()
            assert torch.allclose(after["image"], lam * image + (1 - lam) * image.roll(1, 0))
            assert after["image"].is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(after["__index__"], before["__index__"])
            assert torch.equal(after["cls"], before["cls"])
            assert "__seed__" not in after


def test_its_draws_are_the_batch_s_own(folder: Path) -> None:
    """Others in each batch and epoch; the same in a run that was resumed."""
    with make(folder, device_transform=rolled) as loader:
        epochs = [[batch["lam"][0].item() for batch in loader] for _ in range(2)]
    assert len({*epochs[0], *epochs[1]}) == 10
    with make(folder, device_transform=rolled) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        state = loader.state_dict()
    with make(folder, device_transform=rolled) as loader:
        loader.load_state_dict(state)
        assert [batch["lam"][0].item() for batch in loader] == epochs[0][2:]


def test_as_a_tuple(folder: Path) -> None:
    """The fields' order is that of `fields`, with what the transform made of them."""
    with make(folder, device_transform=rolled, layout="tuple") as loader:
        image, label = next(iter(loader))
        assert image.dtype == torch.float32
        assert label.dtype == torch.int64


def test_one_that_fails(folder: Path) -> None:
    """Its own exception, with its own line, at the batch that it failed for; also when a thread ran it."""

    def picky(batch: dict[str, Any]) -> None:
        raise ValueError(f"{len(batch['cls'])} are too many")

    with make(folder, device_transform=picky) as loader, pytest.raises(ValueError, match="8 are too many") as told:
        next(iter(loader))
    assert any(entry.name == "picky" for entry in told.traceback)
    with make(folder, device_transform=lambda batch: [1]) as loader, pytest.raises(TypeError, match="found list"):
        next(iter(loader))


def test_what_it_needs(folder: Path) -> None:
    """A device, and a function."""
    with pytest.raises(UsageError, match="needs device="):
        make(folder, device=None, device_transform=rolled)
    with pytest.raises(UsageError, match="must be a function"):
        make(folder, device_transform="normalise")


def test_it_may_hold_what_cannot_be_pickled(folder: Path) -> None:
    """It stays in the trainer: a closure over a file does."""
    with make(folder, device_transform=lambda batch: {"name": sys.stdout.name, "cls": batch["cls"] + 1}) as loader:
        batch = next(iter(loader))
        assert batch["name"] == sys.stdout.name
