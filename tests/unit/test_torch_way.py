"""`stoker.torch` in one process: samplers, samples, collate, normalize, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import stoker
import stoker.torch
from stoker.errors import MissingFieldError, SampleError, UsageError
from stoker.pack import pack
from stoker.torch import BatchSampler, IterableDataset, MapDataset, Number, Sampler, collate, normalize
from support_dataset import jpeg, write_shards

SAMPLES = 60
FIELDS: dict[str, object] = {"image": stoker.image.RandomResizedCrop(16, flip=True), "cls": int, "txt": str}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """60 samples in three shards."""
    return stoker.open(write_shards(tmp_path_factory.mktemp("shards"), SAMPLES))


def test_batches_are_those_of_the_loader(dataset: stoker.Dataset) -> None:
    """Same seed: the same samples in the same order with the same augmentation, dtypes and keys, over two epochs."""
    samples = MapDataset(dataset, FIELDS)
    torchs = DataLoader(samples, batch_sampler=BatchSampler(dataset, 16, seed=7), collate_fn=collate)
    with stoker.Loader(dataset, 16, seed=7, fields=FIELDS) as loader:
        for _ in range(2):
            ours, theirs = list(loader), list(torchs)
            assert len(ours) == len(theirs) == 3
            for one, other in zip(ours, theirs, strict=True):
                assert one.keys() == other.keys()
                assert one["__key__"] == other["__key__"]
                assert one["txt"] == other["txt"]
                for name in ("image", "cls", "__index__"):
                    assert one[name].dtype == other[name].dtype
                    assert torch.equal(one[name], other[name])


def test_a_state_goes_from_sampler_to_loader_and_back(dataset: stoker.Dataset) -> None:
    """The state after two batches, loaded by a Loader of another batch size, gives the third batch's samples."""
    sampler = BatchSampler(dataset, 10, seed=3)
    drawn = [list(map(int, batch)) for batch in sampler]
    state = sampler.state_after(2)
    with stoker.Loader(dataset, 5, seed=3, fields={"cls": int}) as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        assert [*next(batches)["__index__"].tolist(), *next(batches)["__index__"].tolist()] == drawn[2]
        again = BatchSampler(dataset, 20, seed=3)
        again.load_state_dict(loader.state_dict())
    assert [list(map(int, batch)) for batch in again] == [drawn[3] + drawn[4]]


def test_ranks_take_equal_steps_and_every_sample_once() -> None:
    """Three ranks over 100 numbers: 8 steps of 4 each, nothing twice; the singles of a Sampler likewise."""
    batches = [list(BatchSampler(100, 4, seed=1, ranks=(rank, 3))) for rank in range(3)]
    assert [len(found) for found in batches] == [8, 8, 8]
    flat = [int(n) for found in batches for batch in found for n in batch]
    assert len(set(flat)) == len(flat) == 96
    singles = [list(map(int, Sampler(100, seed=1, ranks=(rank, 3)))) for rank in range(3)]
    assert [len(found) for found in singles] == [33, 33, 33]
    assert len({n for found in singles for n in found}) == 99


def test_padding_is_marked(dataset: stoker.Dataset) -> None:
    """tail="pad": every sample comes, repeats have a False mask, and evaluation can leave them out."""
    sampler = BatchSampler(dataset, 16, shuffle="none", tail="pad", ranks=(1, 2))
    loader = DataLoader(MapDataset(dataset, {"cls": int}), batch_sampler=sampler, collate_fn=collate)
    found = [(b["__index__"].tolist(), b["__mask__"].tolist()) for b in loader]
    assert found[1] == ([*range(48, 60), 0, 1, 2, 3], [True] * 12 + [False] * 4)
    assert found[0][1] == [True] * 16


def test_each_iteration_is_the_next_epoch_as_with_a_loader() -> None:
    """`iter` after a break begins the next epoch, `set_epoch` chooses one, and does not undo a resume into it."""
    sampler = BatchSampler(50, 10, seed=5)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sampler.epoch == 1
    assert {number.epoch for batch in second for number in batch} == {1}
    next(iter(sampler))
    assert sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == first
    resumed = BatchSampler(50, 10, seed=5)
    sampler.set_epoch(1)
    next(iter(sampler))
    resumed.load_state_dict(sampler.state_after(1))
    resumed.set_epoch(1)
    assert list(resumed) == second[1:]
    assert list(resumed) == list(_of_epoch(50, 10, 5, 2))


def _of_epoch(samples: int, batch: int, seed: int, epoch: int) -> BatchSampler:
    sampler = BatchSampler(samples, batch, seed=seed)
    sampler.set_epoch(epoch)
    return sampler


def test_the_end_of_an_epoch_is_the_beginning_of_the_next() -> None:
    """A state taken after the last batch goes on with the next epoch."""
    sampler = BatchSampler(50, 15, seed=5)
    list(sampler)
    resumed = BatchSampler(50, 15, seed=5)
    resumed.load_state_dict(sampler.state_after(3))
    assert resumed.epoch == 1
    assert list(resumed) == list(_of_epoch(50, 15, 5, 1))


def test_singles_make_the_same_global_batches() -> None:
    """Over two ranks a Sampler's singles, batched by DataLoader, cover the same samples a step as a BatchSampler."""
    together = [
        {int(n) for rank in range(2) for n in list(BatchSampler(64, 8, seed=2, ranks=(rank, 2)))[step]}
        for step in range(4)
    ]
    loaders = [
        DataLoader(range(64), batch_size=8, sampler=Sampler(64, seed=2, ranks=(rank, 2)), drop_last=True)
        for rank in range(2)
    ]
    assert [{*a.tolist(), *b.tolist()} for a, b in zip(*loaders, strict=True)] == together


def test_anybodys_dataset_can_be_sampled() -> None:
    """A list, a tensor and an array are indexed by the numbers as by any int."""
    for data in (list(range(100)), torch.arange(100), np.arange(100)):
        loader = DataLoader(data, batch_sampler=BatchSampler(data, 25, seed=1))
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(100))


def test_numbers_travel() -> None:
    """Pickle and copy keep sample, epoch, seed and mask."""
    number = Number(7, 3, 2**63, False)
    for other in (pickle.loads(pickle.dumps(number)), copy.copy(number), copy.deepcopy([number])[0]):
        assert (other, other.epoch, other.seed, other.mask) == (7, 3, 2**63, False)
        assert type(other) is Number


def test_map_dataset_by_plain_numbers(dataset: stoker.Dataset) -> None:
    """Indexing as any dataset: negative numbers, IndexError, epochs by set_epoch, a copy through pickle."""
    samples = MapDataset(dataset, FIELDS, seed=4)
    assert len(samples) == SAMPLES
    assert samples[-1]["__index__"] == 59
    assert samples[3]["txt"] == "sample 3"
    with pytest.raises(IndexError, match="60 samples"):
        samples[60]
    before = samples[5]["image"]
    assert np.array_equal(before, samples[5]["image"])
    samples.set_epoch(1)
    assert not np.array_equal(before, samples[5]["image"])
    other = pickle.loads(pickle.dumps(samples))
    assert np.array_equal(other[5]["image"], samples[5]["image"])
    assert [one["__index__"] for one in samples.__getitems__([9, 2, 9])] == [9, 2, 9]


class Labelled(MapDataset):
    """A subclass with an attribute of its own."""

    label = "none"

    def __getitems__(self, numbers: Any) -> Any:
        return [{**sample, "label": self.label} for sample in super().__getitems__(numbers)]


def test_a_subclass_stays_what_it_is(dataset: stoker.Dataset) -> None:
    """Through pickle, with what was set on it."""
    samples = Labelled(dataset, {"cls": int})
    samples.label = "mine"
    assert pickle.loads(pickle.dumps(samples))[4]["label"] == "mine"


def test_a_transform_gets_the_seed_and_gives_the_fields(dataset: stoker.Dataset) -> None:
    """A lambda that cannot be pickled by pickle travels; `__seed__` differs by sample and epoch only."""
    samples = MapDataset(dataset, {"cls": int}, transform=lambda s: {"twice": s["cls"] * 2, "seed": s["__seed__"]})
    again = pickle.loads(pickle.dumps(samples))
    one, other = samples[3], again[3]
    assert one == other
    assert one.keys() == {"twice", "seed", "__key__", "__index__"}
    assert one["seed"] != samples[4]["seed"]
    samples.set_epoch(2)
    assert one["seed"] != samples[3]["seed"]


def test_bad_samples_are_raised_or_replaced_as_the_loader_does(tmp_path: Path) -> None:
    """By default an error with number and key; "replace" puts the sample that a Loader would."""

    def member(number: int) -> dict[str, bytes]:
        return {"jpg": b"no photo" if number == 7 else jpeg(number), "cls": str(number).encode()}

    dataset = stoker.open(write_shards(tmp_path, 20, member=member))
    fields: dict[str, object] = {"image": stoker.image.CenterCrop(8), "cls": int}
    with pytest.raises(SampleError, match=r"sample 7, key '000007', epoch 0"):
        MapDataset(dataset, fields)[7]
    replaced = MapDataset(dataset, fields, on_bad="replace")
    batches = DataLoader(replaced, batch_sampler=BatchSampler(dataset, 20, seed=9), collate_fn=collate)
    with stoker.Loader(dataset, 20, seed=9, fields=fields, on_bad="replace", on_bad_max=0.5) as loader:
        (ours,), (theirs,) = list(loader), list(batches)
    assert torch.equal(ours["__index__"], theirs["__index__"])
    assert torch.equal(ours["image"], theirs["image"])
    with pytest.raises(UsageError, match="has a field 'jpeg'"):
        MapDataset(dataset, {"jpeg": bytes})


def test_a_missing_field_is_a_bad_sample(tmp_path: Path) -> None:
    """A sample without a field that others have is named with what it does have."""

    def member(number: int) -> dict[str, bytes]:
        return {"cls": b"1"} if number == 2 else {"cls": b"1", "txt": b"t"}

    samples = MapDataset(stoker.open(write_shards(tmp_path, 4, shards=1, member=member)), {"txt": str})
    with pytest.raises(MissingFieldError, match="no field 'txt', but cls"):
        samples[2]


def test_collate_makes_tensors_of_what_is_alike_and_lists_of_the_rest() -> None:
    """Arrays, numbers and tensors are stacked; differing shapes and dtypes, strings and None are lists."""
    readonly = np.arange(3)
    readonly.flags.writeable = False
    samples: list[dict[str, Any]] = [
        {"a": readonly, "n": 1, "f": 0.5, "t": torch.ones(2, dtype=torch.bfloat16), "s": "x", "v": np.zeros(i + 1)}
        for i in range(3)
    ]
    batch = collate(samples)
    assert batch["a"].shape == (3, 3)
    assert (batch["n"].dtype, batch["f"].dtype, batch["t"].dtype) == (torch.int64, torch.float64, torch.bfloat16)
    assert batch["s"] == ["x", "x", "x"]
    assert [tuple(v.shape) for v in batch["v"]] == [(1,), (2,), (3,)]
    assert collate([{"a": 1}, {"a": 1.5}])["a"][1].dtype == torch.float64
    assert collate([{"a": None}, {"a": 2}])["a"][0] is None
    assert torch.equal(collate([1, 2, 3]), torch.tensor([1, 2, 3]))
    assert collate([{"a": np.arange(4)[::-1]}])["a"].tolist() == [[3, 2, 1, 0]]
    with pytest.raises(UsageError, match="sample 'k2' has no field 'b'"):
        collate([{"a": 1, "b": 2, "__key__": "k1"}, {"a": 1, "__key__": "k2"}])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_normalize_is_torchvisions_arithmetic_without_moving_memory(dtype: torch.dtype) -> None:
    """(x/255 - mean)/std per channel, NCHW in shape, channels_last in memory, one picture or a batch."""
    images = torch.randint(0, 256, (4, 5, 6, 3), dtype=torch.uint8)
    found = normalize(images, dtype=dtype)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (stoker.torch.IMAGENET_MEAN, stoker.torch.IMAGENET_STD))
    exact = (images.permute(0, 3, 1, 2).double() / 255 - mean) / std
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found.double(), exact, atol=0.02 if dtype in (torch.float16, torch.bfloat16) else 1e-5)
    assert torch.equal(normalize(images[0], dtype=dtype), found[0])
    assert torch.equal(images, images.clone())
    gray = normalize(images[..., :1], [0.5], [0.5])
    assert (gray.shape, float(gray.max()) <= 1) == ((4, 1, 5, 6), True)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: normalize(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)), "8 channels"),
        (lambda: normalize(torch.zeros(2, 8, 8, 3)), "uint8 images"),
        (lambda: BatchSampler(10, 0), "batch_size"),
        (lambda: BatchSampler(10, 11), "0 steps"),
        (lambda: BatchSampler(10, 1, seed=-1), "seed"),
        (lambda: BatchSampler(10, 1, ranks=(3, 2)), "rank 3"),
        (lambda: BatchSampler(10, 1, shuffle="some"), "shuffle"),
        (lambda: BatchSampler(iter([]), 1), "list_iterator"),
        (lambda: BatchSampler(10, 5).state_after(3), "at most 2"),
        (lambda: BatchSampler(10, 5).set_epoch(-1), "epoch"),
        (lambda: BatchSampler(10, 5).load_state_dict(BatchSampler(10, 5, seed=1).state_after(1)), "another plan"),
        (lambda: BatchSampler(10, 5).load_state_dict({"epoch": 1}), "a position holds"),
        (lambda: MapDataset("photos"), "stoker.open"),
        (lambda: IterableDataset([], []), "MapDataset and a BatchSampler"),
    ],
)
def test_wrong_use_is_refused(call: Any, words: str) -> None:
    """Each with what was expected and what was found."""
    with pytest.raises(UsageError, match=words):
        call()


def test_what_cannot_be_pickled_is_said(dataset: stoker.Dataset) -> None:
    """A transform that holds a lock cannot go to a worker."""
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to a worker process"):
        pickle.dumps(MapDataset(dataset, transform=lambda s: {"locked": lock.locked()}))


def test_an_iterable_epoch_that_runs_twice_is_said(dataset: stoker.Dataset) -> None:
    """Without set_epoch a second pass warns; with it, or unshuffled, it does not."""

    def made(shuffle: Any) -> DataLoader[Any]:
        batches = BatchSampler(dataset, 20, shuffle=shuffle)
        return DataLoader(IterableDataset(MapDataset(dataset, {"cls": int}), batches), batch_size=None)

    loader: Any = made("full")
    assert len(loader) == 3
    first = [batch["__index__"].tolist() for batch in loader]
    with pytest.warns(UserWarning, match="set_epoch"):
        assert [batch["__index__"].tolist() for batch in loader] == first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.dataset.set_epoch(1)
        assert [batch["__index__"].tolist() for batch in loader] != first
        straight = made("none")
        assert [len(list(straight)) for _ in range(2)] == [3, 3]


def test_a_mixture_through_a_dataloader(dataset: stoker.Dataset, tmp_path: Path) -> None:
    """The batches of `stoker.Loader` over the same mixture; plain numbers, which know no weights, are refused."""
    other = stoker.open(write_shards(tmp_path / "other", 30))
    mixture = stoker.Mixture({"a": (dataset, 0.7), "b": (other, 0.3)}, epoch=48)
    samples = MapDataset(mixture, FIELDS)
    torchs = list(DataLoader(samples, batch_sampler=BatchSampler(mixture, 12, seed=7), collate_fn=collate))
    with stoker.Loader(mixture, 12, seed=7, fields=FIELDS) as loader:
        for one, there in zip(loader, torchs, strict=True):
            assert torch.equal(one["__index__"], there["__index__"])
            assert torch.equal(one["image"], there["image"])
    with pytest.raises(UsageError, match="BatchSampler"):
        samples[0]


def test_an_image_is_found_behind_a_map(dataset: stoker.Dataset) -> None:
    """`image`, and alternatives, mean a stored field also where `dataset.map` hands on whole samples."""
    mapped = dataset.map(lambda sample: {**sample, "cls": str(int(sample["cls"]) + 100).encode()})
    fields: dict[str, object] = {
        "image": stoker.image.CenterCrop(16),
        "png;jpg": stoker.image.CenterCrop(8),
        "cls": int,
    }
    one = MapDataset(mapped, fields)[3]
    with stoker.Loader(mapped, 4, fields=fields, shuffle="none") as loader:
        batch = next(iter(loader))
    assert batch["cls"].tolist() == [100, 101, 102, 103]
    assert torch.equal(batch["image"][3], torch.as_tensor(one["image"]))
    assert batch["png;jpg"].shape == (4, 8, 8, 3)
    with stoker.Loader(dataset, 4, fields={"image": stoker.image.CenterCrop(16)}, shuffle="none") as plain:
        assert torch.equal(batch["image"], next(iter(plain))["image"])


def test_pixels_kept_by_a_format_are_cut_like_those_of_a_file(tmp_path: Path) -> None:
    """Pictures packed decoded are cropped by a named decoder as the Loader crops them."""
    (tmp_path / "raw" / "a").mkdir(parents=True)
    for number in range(8):
        (tmp_path / "raw" / "a" / f"{number}.jpg").write_bytes(jpeg(number))
    pack(tmp_path / "raw", tmp_path / "out", predecode=24)
    data = stoker.open(tmp_path / "out")
    fields: dict[str, object] = {"image": stoker.image.RandomResizedCrop(16, flip=True)}
    torchs = DataLoader(MapDataset(data, fields), batch_sampler=BatchSampler(data, 8, seed=2), collate_fn=collate)
    with stoker.Loader(data, 8, seed=2, fields=fields) as loader:
        one, other = next(iter(loader)), next(iter(torchs))
    assert other["image"].shape == (8, 16, 16, 3)
    assert torch.equal(one["image"], other["image"])
