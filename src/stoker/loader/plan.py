"""From a dataset, fields and a budget to a feeder's job: defaults are decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stoker import machine
from stoker.dataset import Dataset, Mixture
from stoker.decode import Decoder, default_for, resolve
from stoker.errors import UsageError
from stoker.loader.buckets import Buckets
from stoker.loader.control import Limits, Setting
from stoker.loader.job import AnyOrder, Job, Work
from stoker.loader.ranks import Ranks
from stoker.loader.slab import SLOTS_MIN
from stoker.order import BucketedOrder, MixedOrder, Mode, Order, Split, Tail, Window, build_order

SLOTS = 8
"""Slots wanted: 4 hold the feeder's and the trainer's turn, 4 more absorb a slow sample."""
SMALL_SLOT_BYTES = 1 << 20
"""Of slots up to this size there are twice as many: a batch takes 100 µs then, and being woken takes half of that."""
TOGETHER_BYTES = 4 << 20
"""Batches that are only copied share a slot up to this size: what a slot costs beside the copying (a task, a message,
two threads that take turns with the interpreter) is 100 µs, as much as copying 800 KB."""
READERS_REMOTE = 16
"""Reading threads where a read is a round trip: at 50 ms and 8 samples a request some 2,500 samples/s."""
READERS_MAX = 256
THREADS_MAX = 128
"""Threads that wait for something else than a CPU may be many; those that compute never get beyond the CPUs."""
SLOTS_MAX = 64
FEEDERS_MAX = 256
RAM_SHARE = 0.25
"""Share of the free memory that all feeders of a node may use together."""

Shuffle = Literal["auto", "full", "none"] | Window | bool


@dataclass(frozen=True, slots=True)
class Budget:
    """What a loader may use of its node."""

    cpus: int | None = None
    """Decoding threads; default: the cgroup's CPUs divided by the local ranks."""
    ram_bytes: int | None = None
    """Bytes for batches and read-ahead; default: a quarter of the free memory divided by the local ranks."""
    feeders: int | None = None
    """Feeder processes; default: one, and more when the transform turns out to hold the GIL."""
    adapt: bool = True
    """Whether threads, readers, slots and feeders follow the measured waits; else they stay as they begin."""


CHOICES = {"output": ("torch", "numpy"), "layout": ("dict", "tuple"), "on_bad": ("raise", "skip", "replace")}


def check_choices(**given: object) -> None:
    """UsageError for a word that an argument does not know."""
    for name, found in given.items():
        if found not in CHOICES[name]:
            raise UsageError(f"{name} must be one of {', '.join(map(repr, CHOICES[name]))}, found {found!r}")


def check_device(device: str | None, transform: object, output: str) -> None:
    """UsageError for what can do nothing without the other."""
    if device is not None and output != "torch":
        raise UsageError(f"device={device!r} needs output='torch', found {output!r}")
    if transform is not None and (device is None or not callable(transform)):
        raise UsageError("device_transform must be a function, and needs device=")


def check_arguments(dataset: object, whole: Mapping[str, object], *, on_bad_max: object) -> None:
    """UsageError for what is no dataset, and for numbers that are not whole or out of range: named, before any use."""
    if not isinstance(dataset, Dataset):
        raise UsageError(f"a Loader takes a dataset, found {dataset!r:.60}", "open it first: stoker.open(url)")
    for name, value in whole.items():
        low, high = (0, 2**64 - 1) if name in ("seed", "epoch") else (0 if name == "rank" else 1, 2**40)
        if type(value) is not int or not low <= value <= high:
            raise UsageError(f"{name} must be a whole number from {low} to {high}, found {value!r}")
    if isinstance(on_bad_max, bool) or not isinstance(on_bad_max, int | float) or not 0 <= on_bad_max <= 1:
        raise UsageError(f"on_bad_max is a share of the epoch from 0 to 1, found {on_bad_max!r}")


def plan_fields(dataset: Dataset, fields: Mapping[str, object] | None) -> tuple[tuple[str, Decoder], ...]:
    """The fields to decode and how. UsageError names a field that no sample of the dataset has."""
    if fields is None:
        return tuple((name, default_for(name, dataset.codec(name))) for name in dataset.fields)
    if not isinstance(fields, Mapping):
        raise UsageError(f"fields maps names to decoders, as {{'cls': int}}, found {type(fields).__name__}")
    if not fields:
        raise UsageError("fields is empty: name at least one, as {'image': stoker.image.CenterCrop(224), 'cls': int}")
    for name in fields:
        if not isinstance(name, str):
            raise UsageError(f"fields maps names to decoders, found {name!r:.80} for a name")
        wanted = (name, *(part.strip() for part in name.split(";")))
        known = set(dataset.fields)
        if not dataset.maps and not any(one in known or one == "image" for one in wanted):
            raise UsageError(f"no sample of {dataset.url} has a field {name!r}; there are {', '.join(dataset.fields)}")
    return tuple((name, resolve(spec)) for name, spec in fields.items())


def plan_batches(
    dataset: Dataset,
    batch_size: int | Buckets,
    shuffle: Shuffle,
    *,
    seed: int,
    ranks: Ranks,
    canonical_nodes: int,
    tail: Tail,
) -> tuple[AnyOrder, Split]:
    """The order of an epoch and this rank's share of it."""
    if isinstance(batch_size, Buckets):
        if shuffle not in (True, False, "auto", "full", "none"):
            raise UsageError(f"buckets take shuffle='full' or 'none', found {shuffle!r}")
        mode: Mode = "none" if shuffle in (False, "none") else "full"
        return batch_size.plan(dataset, ranks, seed=seed, mode=mode, tail=tail, canonical_nodes=canonical_nodes)
    split = plan_split(len(dataset), batch_size, ranks, canonical_nodes, tail)
    return plan_order(dataset, shuffle, seed=seed, canonical_nodes=canonical_nodes), split


def plan_split(samples: int, batch_size: int, ranks: Ranks, canonical_nodes: int, tail: Tail) -> Split:
    """This rank's share of an epoch. UsageError for an epoch of no steps, with a batch size that would fit."""
    split = Split(samples, batch_size, ranks.rank, ranks.world_size, canonical_nodes, tail)
    if split.steps() == 0:
        raise UsageError(
            f"an epoch would have 0 steps: {samples} samples, but one step over {ranks.world_size} rank(s) "
            f"takes {split.global_batch}",
            f"batch_size={max(1, samples // ranks.world_size)} would fit, or tail='pad'",
        )
    return split


def plan_order(dataset: Dataset, shuffle: Shuffle, *, seed: int, canonical_nodes: int) -> Order | MixedOrder:
    """The epoch's order. `auto` is full where random access is cheap, else a window; a mixture has one of each part."""
    if isinstance(dataset, Mixture):
        if canonical_nodes != 1:
            raise UsageError(f"a mixture has one canonical node, found canonical_nodes={canonical_nodes}")
        parts = [_plan_order(part, shuffle, seed=seed, canonical_nodes=1) for part in dataset.parts.values()]
        return dataset.make_order(parts, seed)
    return _plan_order(dataset, shuffle, seed=seed, canonical_nodes=canonical_nodes)


def _plan_order(dataset: Dataset, shuffle: Shuffle, *, seed: int, canonical_nodes: int) -> Order:
    mode: Literal["full", "none"] | Window
    if shuffle is True or shuffle == "auto":
        mode = "full" if not dataset.remote or _fits_cache(dataset) else Window()
    elif shuffle is False:
        mode = "none"
    else:
        mode = shuffle
    if not isinstance(mode, Window) and mode not in ("full", "none"):
        raise UsageError(f"shuffle must be 'auto', 'full', 'none' or stoker.Window(shards=…), found {shuffle!r}")
    return build_order(mode, shard_starts=dataset.shard_starts, seed=seed, canonical_nodes=canonical_nodes)


def _fits_cache(dataset: Dataset) -> bool:
    if dataset.cache is None:
        return False
    limit = dataset.cache.status().limit
    index = dataset.index
    return limit is None or sum(index.shard(n).size for n in range(len(index.shard_starts) - 1)) <= limit


def plan_work(dataset: Dataset, budget: Budget | None, ranks: Ranks, *, pinned: bool) -> Work:
    """Threads and memory under the budget."""
    given = Budget() if budget is None else budget
    if not isinstance(given, Budget):
        raise UsageError(f"budget is a stoker.Budget, found {given!r:.80}", "as stoker.Budget(cpus=8, ram_bytes=10**9)")
    if type(given.adapt) is not bool:
        raise UsageError(f"Budget(adapt=) is True or False, found {given.adapt!r:.80}")
    for name, value in (("cpus", given.cpus), ("ram_bytes", given.ram_bytes), ("feeders", given.feeders)):
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"Budget({name}=) is a whole number, at least 1, found {value!r}")
    if given.feeders is not None and given.feeders > FEEDERS_MAX:
        raise UsageError(f"Budget(feeders=) is the number of processes, at most {FEEDERS_MAX}, found {given.feeders}")
    threads = given.cpus or max(1, machine.cpus() // ranks.local_world_size)
    ram = given.ram_bytes or int(machine.memory_bytes_free() * RAM_SHARE / ranks.local_world_size)
    return Work(threads, READERS_REMOTE if dataset.remote else 0, SLOTS, ram, threads, given.adapt, pinned)


def slots_within(work: Work, slot_bytes: int, feeders: int) -> tuple[int, int]:
    """How many slots of that size one of *feeders* begins with, and how many it may come to."""
    wanted = work.slots if slot_bytes > SMALL_SLOT_BYTES else 2 * work.slots
    room = work.ram_bytes // 2 // feeders // slot_bytes
    slots = max(SLOTS_MIN, min(wanted, room))
    return slots, max(slots, min(SLOTS_MAX, room)) if work.adapt and not work.pinned else slots


def steps_together(job: Job, step_bytes: int) -> int:
    """How many steps of *step_bytes* a slot holds, where samples are copied and not decoded.

    Batches that are seen to one by one (a function of the user's, samples left out, lengths that differ) lie alone.
    """
    if job.batch_transform is not None or job.bad.action != "raise" or isinstance(job.order, BucketedOrder):
        return 1
    room = job.work.ram_bytes // 2 // job.work.slots
    return max(1, min(TOGETHER_BYTES, room) // step_bytes)


def shared(work: Work, feeders: int, slots: int, slots_max: int) -> tuple[Setting, Limits]:
    """What one of *feeders* begins with, and what it may come to."""
    threads = max(1, work.threads // feeders)
    setting = Setting(threads, -(-work.readers // feeders), slots, feeders)
    limits = Limits(
        threads=max(threads, THREADS_MAX // feeders),
        readers=max(setting.readers, READERS_MAX // feeders),
        slots=slots_max,
        feeders=max(feeders, work.cpus),
        cpus=work.cpus / feeders,
    )
    return setting, limits
