"""The two kinds of dataset that torch's DataLoader knows, over a stoker dataset.

Right under fork, forkserver and spawn: what crosses to a worker is a description (by cloudpickle: lambdas and functions
of a script are fine), and every process opens its own files. Stores behind obstore do not survive a fork of a process
that used them; there the worker raises UnsupportedError, and "forkserver" or "spawn" is the way.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import torch
import torch.utils.data

from stoker.dataset import Dataset, Mixture
from stoker.errors import UsageError
from stoker.torch.collate import collate
from stoker.torch.number import Number
from stoker.torch.sampler import BatchSampler, Course, shared
from stoker.torch.samples import OnBad, Sample, Samples, Transform


class MapDataset(torch.utils.data.Dataset[Sample]):
    """Samples by number for a DataLoader: dicts of decoded values with `__key__` and `__index__`."""

    def __init__(
        self,
        dataset: Dataset,
        fields: Mapping[str, object] | None = None,
        *,
        seed: int = 0,
        transform: Transform | None = None,
        on_bad: OnBad = "raise",
    ) -> None:
        """The samples of *dataset*, whose *fields* are decoded as `stoker.Loader` would.

        *transform* gets and gives a dict of a sample; `sample["__seed__"]` depends on seed, epoch and sample only. A
        number from stoker's samplers brings epoch and seed along; for a plain int they are *seed* and what `set_epoch`
        said. A Mixture takes none: its shares are known to stoker's samplers only. *on_bad* "replace" puts another
        sample, always the same, where one cannot be used.
        """
        if not isinstance(dataset, Dataset):
            raise UsageError(f"MapDataset takes a dataset, found {dataset!r:.60}", "open it first: stoker.open(url)")
        if on_bad not in ("raise", "replace"):
            raise UsageError(f"on_bad must be 'raise' or 'replace', found {on_bad!r}")
        if type(seed) is not int or not 0 <= seed < 2**64:
            raise UsageError(f"seed must be a whole number from 0 to 2^64 - 1, found {seed!r}")
        self.dataset = dataset
        self.seed = seed
        self._samples = Samples(dataset, fields, transform, on_bad)
        self._epoch = shared(())

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Numbers that bring no epoch are of this one, in running workers too."""
        self._epoch.fill_(epoch)

    def __getitem__(self, number: int) -> Sample:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Sample]:
        """The samples of a batch, read in one go. IndexError for a number that there is not."""
        return self._samples.get([self._numbered(number) for number in numbers])

    def _numbered(self, number: int) -> Number:
        if isinstance(number, Number):
            return number
        if isinstance(self.dataset, Mixture):
            raise UsageError(
                f"number {number!r} of a mixture was drawn by no sampler of stoker's, which know its weights",
                "DataLoader(…, batch_sampler=stoker.torch.BatchSampler(mixture, batch_size))",
            )
        place = int(number) + (len(self) if number < 0 else 0)
        if not 0 <= place < len(self):
            raise IndexError(f"sample {number} of a dataset with {len(self)} samples")
        return Number(place, int(self._epoch), self.seed)

    def __reduce__(self) -> tuple[Callable[..., MapDataset], tuple[type[MapDataset], bytes, torch.Tensor]]:
        state = {name: value for name, value in self.__dict__.items() if name != "_epoch"}
        return _revive, (type(self), _pickled(state), self._epoch)


def _pickled(state: object) -> bytes:
    try:
        return bytes(cloudpickle.dumps(state, protocol=5))
    except (TypeError, AttributeError, pickle.PicklingError, RecursionError) as error:
        raise UsageError(
            f"the dataset cannot be sent to a worker process: {error}",
            "make transform and decoders without open files, locks or clients, and open those on first use",
        ) from error


def _revive(kind: type[MapDataset], state: bytes, epoch: torch.Tensor) -> MapDataset:
    """The dataset in a worker. The epoch's memory is shared, so it travels by torch's own ways, not in the state."""
    made = kind.__new__(kind)
    made.__dict__.update(pickle.loads(state))
    made._epoch = epoch
    return made


class IterableDataset(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Whole batches in stoker's order, for `DataLoader(…, batch_size=None)`: worker k of n makes every n-th.

    A DataLoader takes its workers' items in turns, so the batches come in the same order for any number of workers, and
    every sample once over all ranks and workers.
    """

    def __init__(
        self, samples: MapDataset, batches: BatchSampler, *, collate: Callable[[list[Sample]], Any] = collate
    ) -> None:
        """The batches that *batches* says, made of *samples* by *collate*."""
        if not isinstance(samples, MapDataset) or not isinstance(batches, BatchSampler):
            raise UsageError(
                f"IterableDataset takes a MapDataset and a BatchSampler, found {type(samples).__name__} "
                f"and {type(batches).__name__}"
            )
        super().__init__()
        self.samples = samples
        self.batches = batches
        self._collate = collate

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` of the DataLoader runs *epoch*. Say it before every epoch: workers cannot count them."""
        self.batches.set_epoch(epoch)

    def state_after(self, returned: int) -> dict[str, Any]:
        """The state once the loop has been given *returned* batches since its `iter()`; see `BatchSampler`."""
        return self.batches.state_after(returned)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where *state* was taken, on any number of ranks and workers. Before `iter()`."""
        self.batches.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        course = self.batches.course
        if worker == 0 and course.ran() and course.order.mode != "none":
            warnings.warn(
                f"epoch {course.epoch} of this IterableDataset runs again, in the same order: "
                "call set_epoch(epoch) before every epoch",
                stacklevel=2,
            )
        return _Stream(self.samples, course, self._collate, worker, workers)


class _Stream(Iterator[Any]):
    """One worker's share of an epoch. Its state is what StatefulDataLoader keeps for this worker."""

    def __init__(
        self, samples: MapDataset, course: Course, collate: Callable[[list[Sample]], Any], worker: int, workers: int
    ) -> None:
        self._samples, self._course, self._collate = samples, course, collate
        self._epoch, self._start = course.epoch, course.position
        self._steps = course.split.steps(self._start)
        self._step, self._stride = worker, workers

    def __next__(self) -> Any:
        if self._step >= self._steps:
            raise StopIteration
        numbers = self._course.numbers(self._epoch, self._start, self._step)
        self._step += self._stride
        return self._collate(self._samples.__getitems__(numbers))

    def state_dict(self) -> dict[str, Any]:
        """The next step of this worker, and the iteration that it counts in."""
        return {**self._course.state(self._epoch, self._start, 0), "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with that step."""
        place = {name: value for name, value in state.items() if name != "step"}
        found = self._course.read(place)
        self._epoch, self._start, self._step = found.epoch, found.consumed, int(state["step"])
        self._steps = self._course.split.steps(self._start)
