"""`stoker.torch` with real worker processes: fork, forkserver, spawn, persistent workers, StatefulDataLoader."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import stoker
from stoker.cli.servers import moto_server
from stoker.errors import UnsupportedError
from stoker.store import StoreOptions, connect
from stoker.torch import BatchSampler, IterableDataset, MapDataset, Sampler, collate
from support_dataset import write_shards

SAMPLES = 60
FIELDS: dict[str, object] = {"image": stoker.image.RandomResizedCrop(16, flip=True), "cls": int}
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has CPUs: meant
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with torch 2.13
]
METHODS = ["fork", "forkserver", "spawn"]
Digest = list[tuple[list[int], int]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """60 samples in three shards."""
    return stoker.open(write_shards(tmp_path_factory.mktemp("shards"), SAMPLES))


def seen(batches: Any) -> Digest:
    """Sample numbers, and a sum over all pixels weighted by place, of every batch."""
    found = []
    for batch in batches:
        pixels = batch["image"].to(torch.int64).flatten()
        found.append((batch["__index__"].tolist(), int((pixels * torch.arange(1, len(pixels) + 1)).sum())))
    return found


def plain(dataset: stoker.Dataset, epoch: int, batch: int = 8, *, seed: int = 11) -> Digest:
    """The epoch as this process makes it, without workers."""
    batches = BatchSampler(dataset, batch, seed=seed)
    batches.set_epoch(epoch)
    samples = MapDataset(dataset, FIELDS)
    return seen(collate(samples.__getitems__(numbers)) for numbers in batches)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_order_and_augmentation_are_the_same_in_workers(dataset: stoker.Dataset, kind: str, method: str) -> None:
    """Two epochs with persistent workers, started each way, after this process has used the dataset: all bytes equal.

    The epoch reaches persistent workers, which hold the dataset as it was when they started.
    """
    expected = [plain(dataset, epoch) for epoch in range(2)]
    samples, batches = MapDataset(dataset, FIELDS), BatchSampler(dataset, 8, seed=11)
    samples[0]
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": method}
    if kind == "map":
        loader = DataLoader(samples, batch_sampler=batches, collate_fn=collate, **options)
    else:
        loader = DataLoader(IterableDataset(samples, batches), batch_size=None, **options)
    for epoch in range(2):
        batches.set_epoch(epoch)
        assert seen(loader) == expected[epoch]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(dataset: stoker.Dataset, workers: int) -> None:
    """One or three workers, more batches than they share evenly: the same batches, for both kinds of dataset."""
    expected = plain(dataset, 0)
    samples = MapDataset(dataset, FIELDS)
    maps = DataLoader(samples, batch_sampler=BatchSampler(dataset, 8, seed=11), collate_fn=collate, num_workers=workers)
    assert seen(maps) == expected
    stream = IterableDataset(samples, BatchSampler(dataset, 8, seed=11))
    assert seen(DataLoader(stream, batch_size=None, num_workers=workers)) == expected


def test_plain_numbers_know_the_epoch_in_persistent_workers(dataset: stoker.Dataset) -> None:
    """With torch's own sampler, `MapDataset.set_epoch` reaches workers that run already."""
    samples = MapDataset(dataset, FIELDS, seed=11)
    loader = DataLoader(samples, batch_size=20, collate_fn=collate, num_workers=2, persistent_workers=True)
    first = seen(loader)
    assert seen(loader) == first
    samples.set_epoch(1)
    second = seen(loader)
    assert [numbers for numbers, _ in second] == [numbers for numbers, _ in first]
    assert all(a != b for (_, a), (_, b) in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_a_plain_dataloader_resumes_behind_what_was_returned(dataset: stoker.Dataset, kind: str) -> None:
    """Three batches returned while workers are ahead; resumed with other workers and batch size, nothing is lost."""

    def made(batch: int, workers: int) -> tuple[Any, BatchSampler]:
        samples, batches = MapDataset(dataset, FIELDS), BatchSampler(dataset, batch, seed=11)
        if kind == "map":
            loader: Any = DataLoader(
                samples, batch_sampler=batches, collate_fn=collate, num_workers=workers, prefetch_factor=4
            )
        else:
            loader = DataLoader(IterableDataset(samples, batches), batch_size=None, num_workers=workers)
        return loader, batches

    loader, batches = made(8, 2)
    batches.set_epoch(1)
    found = []
    for returned, batch in enumerate(loader, start=1):
        found += seen([batch])
        if returned == 3:
            break
    state = batches.state_after(3)
    resumed, sampler = made(4, 1)
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    rest = seen(resumed)
    whole = [n for numbers, _ in plain(dataset, 1, 4) for n in numbers]
    assert [n for numbers, _ in found + rest for n in numbers] == whole[: 24 + 36]
    assert rest == plain(dataset, 1, 4)[6:]


@pytest.mark.parametrize("kind", ["map", "iterable", "singles"])
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_exactly(dataset: stoker.Dataset, kind: str, workers: int) -> None:
    """torchdata's loader, stopped at two places and loaded anew: the rest of the epoch, and the next one."""

    def made() -> Any:
        samples, batches = MapDataset(dataset, FIELDS), BatchSampler(dataset, 8, seed=11)
        if kind == "map":
            return StatefulDataLoader(samples, batch_sampler=batches, collate_fn=collate, num_workers=workers)
        if kind == "iterable":
            return StatefulDataLoader(IterableDataset(samples, batches), batch_size=None, num_workers=workers)
        sampler = Sampler(dataset, seed=11)
        return StatefulDataLoader(
            samples, batch_size=8, sampler=sampler, drop_last=True, collate_fn=collate, num_workers=workers
        )

    expected = [plain(dataset, epoch) for epoch in range(2)]
    for stop in (1, 4):
        loader = made()
        batches = iter(loader)
        assert seen(next(batches) for _ in range(stop)) == expected[0][:stop]
        state = loader.state_dict()
        del batches, loader
        resumed = made()
        resumed.load_state_dict(state)
        assert seen(resumed) == expected[0][stop:]
        if kind == "iterable":
            resumed.dataset.set_epoch(1)
        assert seen(resumed) == expected[1]


def test_a_script_without_importable_functions(dataset: stoker.Dataset, tmp_path: Path) -> None:
    """Under spawn, a lambda of the main script as transform and a function as decoder."""
    script = tmp_path / "train.py"
    script.write_text(
        "import stoker, stoker.torch\nfrom torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        f"    dataset = stoker.open({dataset.url.removeprefix('file://')!r})\n"
        "    samples = stoker.torch.MapDataset(dataset, {'cls': lambda raw: int(raw) + 1},\n"
        "        transform=lambda s: {'x': s['cls'] * 10})\n"
        "    loader = DataLoader(samples, batch_sampler=stoker.torch.BatchSampler(dataset, 30, shuffle='none'),\n"
        "        collate_fn=stoker.torch.collate, num_workers=1, multiprocessing_context='spawn')\n"
        "    print([int(batch['x'].sum()) for batch in loader])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[1650, 1650]", done.stderr


@pytest.fixture(scope="module")
def remote(dataset: stoker.Dataset) -> Iterator[stoker.Dataset]:
    """The dataset in a bucket, opened, so that this process has used an object store."""
    with moto_server() as running:
        running.make_bucket("bucket")
        options = StoreOptions(
            endpoint=running.endpoint, access_key=running.access_key, secret_key=running.secret_key, region="us-east-1"
        )
        store = connect("s3://bucket/data", options=options)
        for path in sorted(Path(dataset.url.removeprefix("file://")).glob("*.tar")):
            store.put(path.name, path.read_bytes())
        yield stoker.open("s3://bucket/data", options=options)


@pytest.mark.parametrize("method", METHODS)
def test_object_stores_in_workers(remote: stoker.Dataset, dataset: stoker.Dataset, method: str) -> None:
    """spawn and forkserver read the bucket; a fork of a process that used it fails at once and says what to do."""
    samples, batches = MapDataset(remote, FIELDS), BatchSampler(remote, 8, seed=11, shuffle="full")
    loader = DataLoader(
        samples, batch_sampler=batches, collate_fn=collate, num_workers=1, multiprocessing_context=method
    )
    if method == "fork":
        with pytest.raises(UnsupportedError, match='"spawn" or "forkserver"'):
            list(loader)
        return
    assert seen(loader) == plain(dataset, 0)
