"""Batches onto the GPU on a side stream, so that the copy of the next batch overlaps the step on this one.

Two dangers decide the code. The source must stay as it is until the copy is done: the host tensors are kept until their
event has passed, and only then does their slot go back to the feeder. And the allocator must not reuse the target while
the training stream still reads it: the target is recorded on that stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from stoker.errors import UsageError

Change = Callable[[dict[str, Any]], dict[str, Any]]


class Copier:
    """Moves a batch's tensors to one device. On a CPU the same steps are a plain copy."""

    def __init__(self, device: str) -> None:
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            self.device = torch.device("meta")
        if self.device.type not in ("cuda", "cpu"):
            raise UsageError(f"device must be 'cuda', 'cuda:N' or 'cpu', found {device!r}")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                f"device={device!r}, but this torch sees no GPU", "leave device out, or install torch for CUDA"
            )
        self._cuda: Any = torch.cuda  # its streams and events are untyped
        self._stream = self._cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._under_way: deque[tuple[Any, list[torch.Tensor]]] = deque()

    def __call__(self, batch: dict[str, Any], change: Change | None = None) -> tuple[dict[str, Any], Any]:
        """The batch with its tensors on their way to the device, what *change* makes of them there, and the event of
        all that: see `arrived`. Any thread may call it, one at a time."""
        self.release()
        if self._stream is None:
            copied = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in batch.items()}
            return copied if change is None else change(copied), None
        sources = [v for v in batch.values() if isinstance(v, torch.Tensor)]
        with torch.cuda.stream(self._stream):
            moved = {
                n: v.to(self.device, non_blocking=True) if isinstance(v, torch.Tensor) else v for n, v in batch.items()
            }
            moved = moved if change is None else change(moved)
            done = self._cuda.Event()
            done.record(self._stream)
        self._under_way.append((done, sources))
        return moved, done

    def arrived(self, batch: dict[str, Any], done: Any) -> None:
        """Make a batch usable on the current stream of the calling thread, which its user calls it in."""
        if done is None:
            return
        training = torch.cuda.current_stream(self.device)
        training.wait_event(done)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(training)

    def release(self) -> None:
        """Let go of the sources whose copies are over."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()

    def close(self) -> None:
        """Wait for the copies under way."""
        while self._under_way:
            self._under_way.popleft()[0].synchronize()
