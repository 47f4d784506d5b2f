"""`stoker.image.Mixup`, `CutMix` and `OneOf`: their arithmetic, their draws, and in a Loader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.decode.augment import Draws
from stoker.decode.mix import cut_box, symmetric_beta
from stoker.errors import UsageError
from stoker.image import CutMix, Mixup, OneOf
from support_dataset import write_shards

CLASSES = 10
FIELDS: dict[str, object] = {"image": stoker.image.RandomResizedCrop(16, flip=True), "cls": int}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """40 samples in three shards."""
    return stoker.open(write_shards(tmp_path_factory.mktemp("data"), 40))


def a_batch(rows: int, seed: int, dtype: type = np.uint8) -> dict[str, Any]:
    """Random pictures and labels."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (rows, 12, 15, 3)).astype(dtype)
    return {"image": images, "cls": random.integers(0, CLASSES, rows), "__seed__": seed}


def shares(labels: np.ndarray, kept: float) -> np.ndarray:
    """One-hot labels, mixed."""
    hot = np.eye(CLASSES)[labels]
    return hot * kept + np.roll(hot, 1, 0) * (1 - kept)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_mixup_is_the_sum_of_a_row_and_the_one_before(alpha: float, rows: int) -> None:
    """Bytes are rounded half up, labels have the same share, in place, for 20 seeds."""
    kept = set()
    for seed in range(20):
        batch = a_batch(rows, seed)
        images, place = batch["image"].astype(np.float64), batch["image"]
        given = Mixup(alpha, classes=CLASSES)(batch)
        lam = float(given["lam"][0])
        expected = np.floor(lam * images + (1 - lam) * np.roll(images, 1, 0) + 0.5)
        assert np.array_equal(place, expected)
        assert given["cls"].dtype == np.float32
        assert np.array_equal(given["cls"], shares(batch["cls"], lam).astype(np.float32))
        assert given["lam"].shape == (rows,)
        kept.add(lam)
    assert len(kept) > 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_mixed_in_their_own_kind(dtype: type) -> None:
    """Whatever the pixels' dtype, it stays."""
    batch = a_batch(5, 3, dtype)
    images = batch["image"].astype(np.float64)
    lam = float(Mixup()(batch)["lam"][0])
    assert batch["image"].dtype == dtype
    assert np.allclose(batch["image"], lam * images + (1 - lam) * np.roll(images, 1, 0), rtol=2e-3)


def test_cutmix_is_a_box_of_the_row_before() -> None:
    """Every pixel is a row's own or its partner's, the share that was kept is the labels', and the box is whole."""
    sizes = set()
    for seed in range(40):
        batch = a_batch(6, seed)
        before, place = batch["image"].copy(), batch["image"]
        given = CutMix(1.0, classes=CLASSES)(batch)
        partner = np.roll(before, 1, 0)
        changed = (place != before).any(axis=(0, 3))
        box = np.zeros_like(changed)
        if changed.any():
            rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
            box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
        assert np.array_equal(place, np.where(box[None, :, :, None], partner, before))
        lam = 1 - box.mean()
        assert given["lam"][0] == np.float32(lam)
        assert np.allclose(given["cls"], shares(batch["cls"], lam), atol=1e-6)
        sizes.add(int(box.sum()))
    assert len(sizes) > 10


def test_without_classes_the_pair_is_given() -> None:
    """Labels stay, the partner's come beside them."""
    batch = a_batch(5, 9)
    given = Mixup(1.0)(batch)
    assert given.keys() == {"cls_other", "lam"}
    assert np.array_equal(given["cls_other"], np.roll(batch["cls"], 1))


def test_labels_that_are_shares_are_mixed() -> None:
    """One-hot or softened before: they are blended like pixels."""
    batch = a_batch(4, 2)
    whole = batch["cls"]
    given = Mixup(1.0)({**batch, "cls": np.eye(CLASSES, dtype=np.float32)[whole]})
    assert np.allclose(given["cls"], shares(whole, float(given["lam"][0])))


@pytest.mark.parametrize("alpha", [0.02, 0.3, 0.5, 0.6, 1.0, 3.0])
def test_the_share_is_of_a_beta_distribution(alpha: float) -> None:
    """Mean 1/2, variance 1 / (4 (2 alpha + 1)), and the fourth moment, each within five standard errors."""
    draws = Draws(int(alpha * 1000))
    drawn = np.array([symmetric_beta(alpha, draws) for _ in range(20_000)])
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    centred = 2 * drawn - 1
    for power, expected in ((1, 0.0), (2, 1 / (2 * alpha + 1)), (4, 3 / ((2 * alpha + 1) * (2 * alpha + 3)))):
        error = (centred**power).std() / math.sqrt(len(drawn))
        assert abs((centred**power).mean() - expected) < 5 * error + 1e-4


def test_boxes_lie_inside_and_have_the_area() -> None:
    """Never outside; where no edge cuts them, 1 - kept of the area."""
    for seed in range(300):
        draws = Draws(seed)
        kept = draws.uniform(0, 1)
        box = cut_box(50, 70, kept, draws)
        assert 0 <= box.top <= box.top + box.height <= 50
        assert 0 <= box.left <= box.left + box.width <= 70
        assert box.height * box.width <= (1 - kept) * 50 * 70 + 1e-6
        if box.top > 0 and box.left > 0 and box.top + box.height < 50 and box.left + box.width < 70:
            assert box.height >= math.sqrt(1 - kept) * 50 - 2


def test_one_of_takes_each_by_its_weight() -> None:
    """Each transform's turn is drawn from the batch's seed, and comes as often as its weight says."""
    either = OneOf(lambda b: {"which": 0}, lambda b: {"which": 1}, lambda b: {"which": 2}, weights=[3, 1, 0])
    drawn = [(either({"__seed__": Draws(seed).next()}) or {})["which"] for seed in range(2000)]
    assert 0.72 < drawn.count(0) / 2000 < 0.78
    assert drawn.count(2) == 0


def test_one_ofs_transforms_draw_for_themselves() -> None:
    """What is drawn inside does not depend on which one was taken: the draws of λ among those with Mixup spread."""
    mixed = OneOf(Mixup(1.0, classes=CLASSES), CutMix(1.0, classes=CLASSES))
    lams = [float((mixed(a_batch(3, seed)) or {})["lam"][0]) for seed in range(60)]
    assert min(lams) < 0.2
    assert max(lams) > 0.8


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Mixup(0), lambda: Mixup(1e-310), lambda: CutMix(10**400),
        lambda: Mixup(-1.0), lambda: CutMix(math.inf), lambda: Mixup(True), lambda: CutMix(classes=0),
        lambda: OneOf(), lambda: OneOf(Mixup(), weights=[0]), lambda: OneOf(Mixup(), weights=[1, 2]),
        lambda: Mixup(classes=3)(a_batch(5, 0)), lambda: Mixup(label="label")(a_batch(5, 0)),
        lambda: Mixup()({**a_batch(2, 0), "image": [np.zeros((4, 4, 3)), np.zeros((5, 4, 3))]}),
        lambda: Mixup()({**a_batch(2, 0), "image": np.zeros((2, 4, 4, 3), np.uint16)}),
        lambda: Mixup()({**a_batch(2, 0), "cls": np.zeros((2, 3), np.int64)}),
        lambda: CutMix()({n: v for n, v in a_batch(2, 0).items() if n != "__seed__"}),
    ],
)  # fmt: skip
def test_wrong_use_is_refused(wrong: Any) -> None:
    """Arguments, pictures of two shapes, labels beyond `classes` and batches without a seed are errors that say so."""
    with pytest.raises(UsageError):
        wrong()


def mixed_run(
    dataset: stoker.Dataset, *, budget: stoker.Budget, state: dict[str, Any] | None = None, steps: int = 100
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Batches of an epoch, or fewer, from a state on."""
    mixing = OneOf(Mixup(0.8, classes=CLASSES), CutMix(1.0, classes=CLASSES))
    got = []
    with stoker.Loader(dataset, 8, seed=5, fields=FIELDS, batch_transform=mixing, budget=budget) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            got.append({name: batch[name].clone() for name in ("image", "cls", "lam")})
            if len(got) == steps:
                break
        return got, loader.state_dict()


def same(ones: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    """Whether all bytes are equal."""
    return len(ones) == len(others) and all(
        torch.equal(one[name], other[name]) for one, other in zip(ones, others, strict=True) for name in one
    )


def test_a_loader_mixes_the_same_whoever_works_and_after_a_resume(dataset: stoker.Dataset) -> None:
    """One thread, three, two feeders, and a run that stopped after two of five batches: the same bytes and shares."""
    whole, _ = mixed_run(dataset, budget=stoker.Budget(cpus=1, adapt=False))
    assert len(whole) == 5
    assert whole[0]["image"].shape == (8, 16, 16, 3)
    assert whole[0]["image"].dtype == torch.uint8
    assert whole[0]["cls"].shape == (8, CLASSES)
    assert torch.allclose(whole[0]["cls"].sum(1), torch.ones(8))
    assert len({float(batch["lam"][0]) for batch in whole}) > 1
    assert same(whole, mixed_run(dataset, budget=stoker.Budget(cpus=3, adapt=False))[0])
    assert same(whole, mixed_run(dataset, budget=stoker.Budget(cpus=2, feeders=2, adapt=False))[0])
    begun, state = mixed_run(dataset, budget=stoker.Budget(cpus=2), steps=2)
    rest, _ = mixed_run(dataset, budget=stoker.Budget(cpus=2), state=state)
    assert same(whole, begun + rest)


def test_epochs_and_seeds_mix_differently(dataset: stoker.Dataset) -> None:
    """The share is drawn anew in another epoch, although the samples are in the same order."""
    with stoker.Loader(dataset, 8, fields=FIELDS, shuffle="none", batch_transform=Mixup(1.0)) as loader:
        first, second = ([float(batch["lam"][0]) for batch in loader] for _ in range(2))
    assert first != second


def test_it_mixes_pictures_of_a_folder(tmp_path: Path) -> None:
    """Padded with repeats, in the last batch too, and only rows that are there."""
    data = stoker.open(write_shards(tmp_path / "d", 21, shards=1))
    with stoker.Loader(data, 8, fields=FIELDS, tail="pad", batch_transform=CutMix(1.0, classes=CLASSES)) as loader:
        assert [tuple(batch["cls"].shape) for batch in loader] == [(8, CLASSES)] * 3
