"""What a Loader refuses instead of guessing: fields that come and go, numbers that do not fit, wrong arguments."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.errors import FeederError, SampleError, StokerError, UsageError
from stoker.events import RunLog
from support_dataset import write_shards
from support_transforms import (
    a_list,
    adds_at_7,
    bad_at_7,
    bad_when_odd,
    drops_cls_at_7,
    exits_at_7,
    gives_a_lock_at_7,
    interrupts_at_0,
    odd_arrays,
    stops_at_7,
    three_rows,
    widens_at_7,
)

SAMPLES = 40


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """40 samples that hold a number."""
    folder = tmp_path_factory.mktemp("data")
    return stoker.open(write_shards(folder, SAMPLES, member=lambda i: {"cls": str(i).encode()}))


def loader(dataset: stoker.Dataset, size: int = 5, **options: Any) -> stoker.Loader:
    """Unshuffled batches of the number."""
    return stoker.Loader(dataset, size, fields={"cls": int}, shuffle="none", **options)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (drops_cls_at_7, "sample 7.*no field 'cls'"),
        (adds_at_7, "sample 7.*'extra'"),
        (widens_at_7, "sample 7.*int64.*int8"),
    ],
)
def test_a_sample_that_differs_is_bad_and_never_made_up(dataset: stoker.Dataset, transform: Any, words: str) -> None:
    """A missing or additional field, or a number that would be cut, is that sample's fault, told by name."""
    with loader(dataset, transform=transform) as strict, pytest.raises(SampleError, match=words):
        list(strict)
    with loader(dataset, transform=transform, on_bad="skip", on_bad_max=0.1) as skipping:
        indexes = [int(i) for batch in skipping for i in batch["__index__"]]
        assert indexes == [i for i in range(SAMPLES) if i != 7]
        assert [bad.index for bad in skipping.bad] == [7]


@pytest.mark.parametrize(("transform", "words"), [(stops_at_7, "StopIteration"), (exits_at_7, "SystemExit")])
def test_no_exception_ends_an_epoch_in_silence(dataset: stoker.Dataset, transform: Any, words: str) -> None:
    """StopIteration and SystemExit of the user's code are errors of the run, with the sample."""
    with loader(dataset, transform=transform) as made, pytest.raises(FeederError, match=f"{words}.*sample 7"):
        list(made)


def test_an_interrupt_while_shapes_are_learned_is_told(dataset: stoker.Dataset) -> None:
    """Whatever is raised before the first batch reaches the trainer too."""
    with loader(dataset, transform=interrupts_at_0) as made, pytest.raises(FeederError, match="KeyboardInterrupt"):
        list(made)


def test_a_value_that_cannot_be_sent_is_an_error_at_once(dataset: stoker.Dataset) -> None:
    """It names field, key and type, and the loader goes on afterwards."""
    with loader(dataset, transform=gives_a_lock_at_7) as made:
        for _ in range(10):  # more often than there are slots
            with pytest.raises(SampleError, match="'x' of 000007: a lock"):
                list(made)


def test_a_batch_of_bad_samples_is_left_out(dataset: stoker.Dataset) -> None:
    """Alone, a process goes on; with others it would fall out of step, and says so."""
    options: dict[str, Any] = {"transform": bad_at_7, "on_bad": "skip", "on_bad_max": 0.1}
    with loader(dataset, 1, **options) as made:
        assert [int(batch["cls"][0]) for batch in made] == [i for i in range(SAMPLES) if i != 7]
        assert made.epoch == 1
    with loader(dataset, 1, rank=1, world_size=2, **options) as ranked, pytest.raises(SampleError, match="replace"):
        for _ in ranked:
            pass


def test_bad_first_samples_do_not_stop_the_learning_of_shapes(dataset: stoker.Dataset) -> None:
    """The shapes come from the first samples that can be used; substitutes are transformed like all others."""
    with loader(dataset, transform=bad_when_odd, on_bad="skip", on_bad_max=1) as made:
        assert [int(d) for batch in made for d in batch["doubled"]] == [2 * i for i in range(1, SAMPLES, 2)]
    with loader(dataset, transform=bad_when_odd, on_bad="replace", on_bad_max=1) as made:
        for batch in made:
            assert batch["doubled"].tolist() == [2 * i for i in batch["__index__"].tolist()]


def test_the_largest_seed_draws_substitutes(dataset: stoker.Dataset) -> None:
    """2^64 - 1 is a seed like any other."""
    with loader(dataset, transform=bad_at_7, seed=2**64 - 1, on_bad="replace", on_bad_max=0.1) as made:
        assert sum(len(batch["cls"]) for batch in made) == SAMPLES


def test_odd_arrays_come_through(dataset: stoker.Dataset) -> None:
    """Dates stay NumPy, foreign byte order and gradients become plain tensors, bfloat16 stays what it is."""
    with loader(dataset, transform=odd_arrays) as made:
        batch = next(iter(made))
    assert batch["date"][0] == np.datetime64("2026-11-30")
    assert batch["big"].tolist() == [[1, 2]] * 5
    assert batch["grad"].tolist() == [[3.0, 3.0]] * 5
    assert batch["half"][0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("function", "words"), [(three_rows, "'cls' with 3 rows, the batch has 5"), (a_list, "found list")]
)
def test_a_batch_transform_that_breaks_the_batch_is_refused(dataset: stoker.Dataset, function: Any, words: str) -> None:
    """Rows of one field never stand beside other rows of another."""
    with loader(dataset, batch_transform=function) as made, pytest.raises((UsageError, TypeError), match=words):
        list(made)


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (2.0, {}, "batch_size.*2.0"),
        (True, {}, "batch_size.*True"),
        ("8", {}, "batch_size.*'8'"),
        (0, {}, "batch_size.*0"),
        (4, {"seed": -1}, "seed.*-1"),
        (4, {"seed": 1.5}, "seed.*1.5"),
        (4, {"seed": 2**64}, "seed"),
        (4, {"canonical_nodes": 2.0}, "canonical_nodes"),
        (4, {"rank": "0", "world_size": 1}, "rank"),
        (4, {"on_bad_max": -1}, "on_bad_max"),
        (4, {"on_bad_max": "x"}, "on_bad_max"),
        (4, {"budget": stoker.Budget(ram_bytes="1GB")}, "ram_bytes"),
        (4, {"device": "foo"}, "foo"),
        (4, {"fields": ["cls"]}, "fields"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_at_the_door(
    dataset: stoker.Dataset, size: Any, options: dict[str, Any], words: str
) -> None:
    """The message names the argument and what was found; nothing was started."""
    with pytest.raises(UsageError, match=words):
        stoker.Loader(dataset, size, **{"fields": {"cls": int}, **options})


def test_what_is_no_dataset_no_epoch_and_no_state_is_refused(dataset: stoker.Dataset) -> None:
    """Also for windows that are no whole number of shards."""
    with pytest.raises(UsageError, match="open it first"):
        stoker.Loader("photos", 4)
    with pytest.raises(UsageError, match="whole number"):
        stoker.Window(shards=1.5)
    with loader(dataset) as made:
        for epoch in (-1, 2**64, 1.0):
            with pytest.raises(UsageError, match="epoch"):
                made.set_epoch(epoch)
        for state in (None, [], {"epoch": 1}):
            with pytest.raises(StokerError):
                made.load_state_dict(state)


def test_a_dataset_travels(dataset: stoker.Dataset) -> None:
    """Pickled and unpickled it reads the same."""
    again = pickle.loads(pickle.dumps(dataset))
    assert again[11] == dataset[11]
    assert repr(again) == repr(dataset)


def test_a_run_log_on_a_full_disk_warns_once_and_counts(tmp_path: Path) -> None:
    """Training goes on; lines written later say how many were lost."""
    log = RunLog("/dev/full")
    with pytest.warns(RuntimeWarning, match="No space left"):
        for _ in range(3):
            log.write("batch", step=1)
        log.close()
    assert log._sink.lost == 3
