"""What a Loader does with bad samples, failing transforms, dead and silent feeders."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import FeederError, SampleError, UsageError
from stoker.loader import process
from support_dataset import feeders, jpeg, write_shards
from support_transforms import bad_at_7, crashes_at_7, doubles, draws, fails_at_7, grows, negate, stops_itself_at_7

SAMPLES = 40


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """40 samples in three shards."""
    return stoker.open(write_shards(tmp_path_factory.mktemp("data"), SAMPLES))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """Sample 7 is no image, sample 11 lacks its label."""

    def member(i: int) -> dict[str, bytes]:
        sample = {"jpg": b"<html>" if i == 7 else jpeg(i), "cls": str(i).encode()}
        return {"jpg": sample["jpg"]} if i == 11 else sample

    return stoker.open(write_shards(tmp_path_factory.mktemp("damaged"), SAMPLES, member=member))


def broken(raw: object) -> object:
    """A field that nobody can decode."""
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize("how", ["at once", "set_epoch", "load_state_dict", "second iter"])
def test_a_feeder_that_failed_before_it_was_told_to_start(dataset: stoker.Dataset, how: str) -> None:
    """It looks at the first samples by itself, fails and is gone; its own error is told, not that nobody listens."""
    with stoker.Loader(dataset, 4, fields={"txt": broken}, output="numpy") as loader:
        pid = {feeder.pid for feeder in feeders()}
        state = {**loader.state_dict(), "consumed": 8}
        while pid & {feeder.pid for feeder in feeders() if feeder.status() != "zombie"}:
            time.sleep(0.01)
        with pytest.raises(ZeroDivisionError, match="mine"):
            if how == "set_epoch":
                loader.set_epoch(1)
            elif how == "load_state_dict":
                loader.load_state_dict(state)
            elif how == "second iter":
                iter(loader)
            next(iter(loader))


FIELDS: dict[str, object] = {"image": stoker.image.CenterCrop(16), "cls": int}


def test_a_bad_sample_stops_the_run_by_default(damaged: stoker.Dataset) -> None:
    """The error names sample, key and what was found, at the batch where it would have come."""
    with stoker.Loader(damaged, 5, fields=FIELDS, shuffle="none") as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(SampleError, match=r"sample 7, key '000007'") as caught:
            next(iterator)
    assert "on_bad" in str(caught.value)


def test_skip_leaves_bad_samples_out(damaged: stoker.Dataset) -> None:
    """Batches are shorter by what is bad; nothing else is lost; both are listed by reason."""
    with stoker.Loader(damaged, 5, fields=FIELDS, shuffle="none", on_bad="skip", on_bad_max=0.1) as loader:
        batches = [(b["__index__"].tolist(), b["cls"].tolist(), len(b["image"])) for b in loader]
        assert [i for indexes, _, _ in batches for i in indexes] == [i for i in range(SAMPLES) if i not in (7, 11)]
        assert all(labels == indexes for indexes, labels, _ in batches)
        assert [rows for _, _, rows in batches] == [5, 4, 4, 5, 5, 5, 5, 5]
        assert [(bad.index, bad.reason) for bad in loader.bad] == [(7, "undecodable"), (11, "missing field")]
        assert loader.report().bad == {"undecodable": 1, "missing field": 1}
        assert "1 missing field, 1 undecodable" in str(loader.report())


def test_replace_keeps_equal_steps_and_is_deterministic(damaged: stoker.Dataset) -> None:
    """Each bad sample has a substitute, the same in every run and for every number of threads."""
    runs = []
    for cpus in (1, 3):
        with stoker.Loader(
            damaged, 5, fields=FIELDS, shuffle="none", on_bad="replace", on_bad_max=0.1, budget=stoker.Budget(cpus=cpus)
        ) as loader:
            runs.append([b["__index__"].tolist() for b in loader])
            assert [bad.replaced_by is not None for bad in loader.bad] == [True, True]
    assert runs[0] == runs[1]
    assert all(len(batch) == 5 for batch in runs[0])
    assert not {7, 11} & {i for batch in runs[0] for i in batch}


def test_too_many_bad_samples_are_an_error_all_the_same(damaged: stoker.Dataset) -> None:
    """on_bad_max is a share of the epoch: at the default 0.001 of 40 samples one is let pass, the second is not."""
    with (
        stoker.Loader(damaged, 5, fields=FIELDS, shuffle="none", on_bad="skip") as loader,
        pytest.raises(SampleError, match=r"2 bad samples, but at most 1 of 40"),
    ):
        list(loader)


def test_a_transforms_exception_comes_as_it_is(dataset: stoker.Dataset) -> None:
    """Its type, its words, the sample, and the feeder's traceback."""
    with stoker.Loader(dataset, 5, fields={"cls": int}, transform=fails_at_7, shuffle="none") as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="seven is not to be") as caught:
            next(iterator)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 7" in notes
    assert "support_transforms.py" in notes


def test_a_transform_may_declare_a_sample_bad(dataset: stoker.Dataset) -> None:
    """SampleError from a transform falls under on_bad."""
    with stoker.Loader(
        dataset, 5, fields={"cls": int}, transform=bad_at_7, shuffle="none", on_bad="skip", on_bad_max=0.1
    ) as loader:
        assert sum(len(b["cls"]) for b in loader) == SAMPLES - 1


def test_a_loader_goes_on_after_an_error(dataset: stoker.Dataset) -> None:
    """A caught error ends the epoch, not the loader."""
    with stoker.Loader(dataset, 5, fields={"cls": int}, transform=fails_at_7, shuffle="none") as loader:
        for _ in range(3):
            with pytest.raises(RuntimeError):
                list(loader)
        loader.set_epoch(0)
        assert next(iter(loader))["cls"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("transform", "words", "hint"),
    [
        (crashes_at_7, "killed by SIGSEGV.*sample.* 7", "crashed"),
        (stops_itself_at_7, "not answered.*sample.* 7", "stopped"),
    ],
)
def test_a_dead_or_silent_feeder_is_named_with_its_sample(
    dataset: stoker.Dataset,
    transform: Callable[[dict[str, Any]], dict[str, Any]],
    words: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash or a stop in foreign code gives an error with signal and sample, not an endless wait."""
    monkeypatch.setattr(process, "SILENT_S_MAX", 3.0)
    loader = stoker.Loader(
        dataset, 5, fields={"cls": int}, transform=transform, shuffle="none", budget=stoker.Budget(cpus=1)
    )
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(FeederError, match=words) as caught:
        next(iterator)
    assert hint in str(caught.value)
    loader.close()


def test_a_killed_feeder_is_an_error_at_once(dataset: stoker.Dataset) -> None:
    """kill -9 of the feeder, between two batches."""
    loader = stoker.Loader(dataset, 5, fields={"cls": int})
    next(iter(loader))
    (feeder,) = feeders()
    feeder.send_signal(signal.SIGKILL)
    with pytest.raises(FeederError, match="killed by SIGKILL"):  # what was delivered before may still be drawn
        for _ in range(3):
            list(loader)
    loader.close()
    assert not feeder.is_running()


def test_what_cannot_be_pickled_is_named_before_anything_starts(dataset: stoker.Dataset) -> None:
    """An open socket inside a transform is reported by argument and attribute."""
    with socket.socket() as held:

        def transform(sample: dict[str, Any]) -> dict[str, Any]:
            return {"port": held.fileno()}

        with pytest.raises(UsageError, match=r"transform\.held \(a socket\)"):
            stoker.Loader(dataset, 5, fields={"cls": int}, transform=transform)
    with pytest.raises(UsageError, match="transform"):
        stoker.Loader(dataset, 5, fields={"cls": int}, transform=threading.Lock())


def test_transforms_make_fields(dataset: stoker.Dataset) -> None:
    """What a transform returns is the batch; strings come as lists; shapes that differ too."""
    with stoker.Loader(dataset, 4, fields={"cls": int}, transform=doubles, shuffle="none") as loader:
        batch = next(iter(loader))
    assert batch["twice"].tolist() == [0, 2, 4, 6]
    assert batch["name"] == ["000000", "000001", "000002", "000003"]
    with stoker.Loader(dataset, 4, fields={"cls": int}, transform=grows, shuffle="none") as loader:
        assert [v.tolist() for v in next(iter(loader))["values"]] == [[1], [1, 1], [1, 1, 1], [1]]


def test_a_batch_transform_works_on_the_slot(dataset: stoker.Dataset) -> None:
    """In place, and with new fields."""
    with stoker.Loader(dataset, 4, fields={"cls": int}, batch_transform=negate, shuffle="none") as loader:
        batch = next(iter(loader))
    assert batch["cls"].tolist() == [0, -1, -2, -3]
    assert batch["total"].tolist() == [-6]


def test_map_sees_raw_samples(dataset: stoker.Dataset) -> None:
    """dataset.map runs before the decoders, and in `dataset[i]`."""
    shouted = dataset.map(lambda s: {**s, "txt": s["txt"].upper()})
    assert shouted[3]["txt"] == b"SAMPLE 3"
    with stoker.Loader(shouted, 4, fields={"txt": str}, shuffle="none") as loader:
        assert next(iter(loader))["txt"][3] == "SAMPLE 3"


def test_the_seed_of_a_sample_depends_on_nothing_else(dataset: stoker.Dataset) -> None:
    """Augmentation is the same for any number of threads, any batch size, any rank count."""
    drawn = []
    for size, cpus in ((4, 1), (10, 3)):
        with stoker.Loader(
            dataset, size, fields={"cls": int}, transform=draws, seed=5, budget=stoker.Budget(cpus=cpus)
        ) as loader:
            drawn.append({int(i): int(d) for b in loader for i, d in zip(b["__index__"], b["draw"], strict=True)})
    assert drawn[0] == drawn[1]


def test_a_kept_slice_never_changes(dataset: stoker.Dataset) -> None:
    """One reshaped slice kept while 100 more batches are drawn keeps its bytes."""
    with stoker.Loader(dataset, 5, fields={"image": stoker.image.CenterCrop(16)}, shuffle="none") as loader:
        iterator = iter(loader)
        kept = next(iterator)["image"][1:3].reshape(-1)[5:500]
        before = kept.clone()
        drawn = 0
        while drawn < 100:
            for _ in iterator:
                drawn += 1
            iterator = iter(loader)
    assert (kept == before).all()


def test_list_of_a_loader_ends(dataset: stoker.Dataset) -> None:
    """Keeping every batch uses up the slots: later ones are copies, with one warning."""
    with stoker.Loader(dataset, 1, fields={"cls": int}, shuffle="none") as loader:
        with pytest.warns(UserWarning, match="kept while new ones are drawn"):
            batches = list(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(loader)) == SAMPLES
    assert [int(b["__index__"][0]) for b in batches] == list(range(SAMPLES))


@pytest.mark.slow
def test_eight_loaders_in_one_process(dataset: stoker.Dataset) -> None:
    """Interleaved, dropped without close, closed: nothing is left running."""
    loaders = [stoker.Loader(dataset, 4, fields={"cls": int}, seed=s, budget=stoker.Budget(cpus=1)) for s in range(8)]
    seen = [[i for b in parts for i in b["__index__"].tolist()] for parts in zip(*loaders, strict=True)]
    assert all(len(part) == 32 for part in seen)
    for loader in loaders[:4]:
        loader.close()
    del loader, loaders
    gc.collect()
    assert not feeders()


def test_a_loader_in_a_forked_child_says_so(dataset: stoker.Dataset) -> None:
    """The feeder belongs to the parent; the child is told instead of stealing its batches."""
    with stoker.Loader(dataset, 4, fields={"cls": int}) as loader:
        iterator = iter(loader)
        next(iterator)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except FeederError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert sum(1 for _ in iterator) == 9


def test_closed_is_closed(dataset: stoker.Dataset, tmp_path: Path) -> None:
    """iter() after close() is an error, and closing twice is not."""
    loader = stoker.Loader(dataset, 4, fields={"cls": int})
    loader.close()
    loader.close()
    with pytest.raises(UsageError, match="closed"):
        iter(loader)
