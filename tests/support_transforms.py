"""Transforms that misbehave, importable by the feeder."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stoker.errors import SampleError
from stoker.store import ByteRange, Memory

Sample = dict[str, Any]


def slow(sample: Sample) -> Sample:
    """30 ms a sample."""
    time.sleep(0.03)
    return sample


def wait_a_little(sample: Sample) -> Sample:
    """5 ms a sample, without computing."""
    time.sleep(0.005)
    return sample


def busy(sample: Sample) -> Sample:
    """Some 2 ms of pure Python a sample."""
    total = 0
    for number in range(20_000):
        total += number * number % 7
    return {**sample, "total": total}


def slow_batch(batch: Sample) -> None:
    """30 ms a batch."""
    time.sleep(0.03)


def fails_at_7(sample: Sample) -> Sample:
    """An exception of the user's own."""
    if sample["__index__"] == 7:
        raise RuntimeError("seven is not to be")
    return sample


def bad_at_7(sample: Sample) -> Sample:
    """A sample that the transform declares bad."""
    if sample["__index__"] == 7:
        raise SampleError("seven is bad")
    return sample


def crashes_at_7(sample: Sample) -> Sample:
    """A segmentation fault in foreign code."""
    if sample["__index__"] == 7:
        ctypes.string_at(0)
    return sample


def stops_itself_at_7(sample: Sample) -> Sample:
    """The feeder falls silent."""
    if sample["__index__"] == 7:
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()  # the stop reaches this thread a moment later
    return sample


def hangs_at_20(sample: Sample) -> Sample:
    """A sample that takes a minute."""
    if sample["__index__"] == 20:
        time.sleep(60)
    return sample


def doubles(sample: Sample) -> Sample:
    """A new field from an old one."""
    return {"twice": sample["cls"] * 2, "name": sample["__key__"]}


def draws(sample: Sample) -> Sample:
    """What a seeded augmentation would draw."""
    return {"draw": sample["__seed__"] % 1000}


def grows(sample: Sample) -> Sample:
    """Values whose shape differs from sample to sample."""
    return {"values": list(range(0))} if sample["__index__"] < 0 else {"values": _ones(1 + sample["__index__"] % 3)}


def _ones(count: int) -> Any:
    import numpy as np

    return np.ones(count, np.float32)


def negate(batch: Sample) -> Sample:
    """A batch transform: one field in place, one new."""
    batch["cls"] *= -1
    return {"total": batch["cls"].sum(keepdims=True)}


class SlowDecoder:
    """A decoder that takes 30 ms a sample."""

    shape: tuple[int, ...] | None = ()
    dtype: Any = "int64"

    def decode(self, raw: Any, out: Any, draw: int) -> Any:
        """The digits, late."""
        time.sleep(0.03)
        value = int(bytes(raw))
        if out is None:
            return value
        out[...] = value
        return None


class SlowMemory(Memory):
    """A store whose reads take longer; it has no paths, so that it is read like a remote one."""

    def __init__(self, objects: Mapping[str, bytes], delay_s: float) -> None:
        super().__init__()
        self._given, self._delay_s = dict(objects), delay_s
        for key, data in objects.items():
            self.put(key, data)

    def __reduce__(self) -> tuple[type[SlowMemory], tuple[dict[str, bytes], float]]:
        return SlowMemory, (self._given, self._delay_s)

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        """As the store, late."""
        time.sleep(self._delay_s)
        return super().get_ranges(key, ranges, version=None)

    def head(self, key: str) -> Any:
        """As indexed elsewhere: without a version."""
        info = super().head(key)
        return type(info)(info.key, info.size, None)


def drops_cls_at_7(sample: Sample) -> Sample:
    """A field is missing from one sample."""
    return {k: v for k, v in sample.items() if k != "cls" or sample["__index__"] != 7}


def adds_at_7(sample: Sample) -> Sample:
    """One sample has a field more."""
    return {**sample, "extra": 1} if sample["__index__"] == 7 else sample


def widens_at_7(sample: Sample) -> Sample:
    """One sample's number needs more bits than the others'."""
    return {"n": np.int64(300) if sample["__index__"] == 7 else np.int8(3)}


def stops_at_7(sample: Sample) -> Sample:
    """next() on an empty iterator."""
    return next(iter([])) if sample["__index__"] == 7 else sample


def exits_at_7(sample: Sample) -> Sample:
    """sys.exit in the middle."""
    return sys.exit(4) if sample["__index__"] == 7 else sample


def interrupts_at_0(sample: Sample) -> Sample:
    """KeyboardInterrupt already while shapes are learned."""
    raise KeyboardInterrupt


def gives_a_lock_at_7(sample: Sample) -> Sample:
    """A value that cannot leave the process."""
    return {"x": threading.Lock() if sample["__index__"] == 7 else "fine"}


def bad_when_odd(sample: Sample) -> Sample:
    """Half of the samples are bad, the first drawn among them."""
    if sample["__index__"] % 2 == 0:
        raise SampleError("even")
    return {"doubled": sample["cls"] * 2}


def odd_arrays(sample: Sample) -> Sample:
    """What NumPy and torch have beside plain numbers."""
    return {
        "date": np.datetime64("2026-11-30"),
        "big": np.array([1, 2], ">i4"),
        "grad": torch.ones(2, requires_grad=True) * 3,
        "half": torch.ones(2, dtype=torch.bfloat16),
    }


def three_rows(batch: Sample) -> Sample:
    """A batch transform that loses rows of a field."""
    return {"cls": batch["cls"][:3]}


def a_list(batch: Sample) -> Any:
    """A batch transform that returns no dict."""
    return [1, 2]
