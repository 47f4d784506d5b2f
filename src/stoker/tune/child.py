"""The process of one trial, `python -m stoker.tune.child FD`: makes the loader, draws real batches, tells what it saw.

What a factory prints cannot mix with what is told: results go to a descriptor of their own. The process may hang, crash
or eat the memory; whoever started it watches (`watch.py`).
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from stoker.errors import StokerError, UsageError, reason_of
from stoker.tune.session import kill_all
from stoker.tune.settings import KNOBS
from stoker.tune.trial import Order, Target

LOOK_EVERY_S = 0.5
SIGN_EVERY_S = 1.0
SLOW_TIMES, SLOW_S = 10, 20.0
"""A loader that has not given a whole round after so many times the order's seconds, and so many more, is cut short."""
SETTLE_S_MAX = 3.0
"""How long to wait for batches under way before a seam is measured."""


def load_factory(target: Target) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names. UsageError says what is not there."""
    where, _, name = target.factory.rpartition(":")
    if not where or not name:
        raise UsageError(f"a factory is written module:function, found {target.factory!r}")
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file")
        sys.path.insert(0, str(path.parent))
        where = path.stem
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r} on this Python's path",
                "run it from the module's folder, or name the file: path/to/file.py:function",
            ) from error
        raise
    factory: Any = getattr(module, name, None)
    if not callable(factory):
        found = f"a {type(factory).__name__}" if hasattr(module, name) else "nothing"
        raise UsageError(f"{where} has no function {name!r}, found {found}")
    return factory  # type: ignore[no-any-return]  # that it can be called is all that is known


def knobs_of(factory: Callable[..., Any], target: Target) -> list[str]:
    """Which knobs the factory takes. UsageError where it needs something else, or takes none."""
    parameters = inspect.signature(factory).parameters.values()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = [
        p.name for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and p.name not in KNOBS and p.name not in target.extra
    ]  # fmt: skip
    if needed:
        raise UsageError(
            f"{target.factory} needs the argument {needed[0]!r}; it is called with knobs of the DataLoader only",
            "give it a default, or wrap it in a function",
        )
    return [name for name in KNOBS if name in named or open_ended]


def size_of(batch: Any) -> tuple[int, int]:
    """Bytes of a batch's arrays, tensors, bytes and texts, and how many samples it seems to hold."""
    if isinstance(batch, dict):
        parts = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = list(batch)
    else:
        nbytes = getattr(batch, "nbytes", None)
        if isinstance(nbytes, int):
            shape: Any = getattr(batch, "shape", ())
            return nbytes, int(shape[0]) if len(shape) else 1
        return (len(batch), 1) if isinstance(batch, bytes | str) else (0, 1)
    sizes = [size_of(part) for part in parts]
    rows = [found for part, (_, found) in zip(parts, sizes, strict=True) if hasattr(part, "shape")]
    return sum(nbytes for nbytes, _ in sizes), max(rows, default=len(parts))


def tree() -> list[psutil.Process]:
    """This process and all that it started."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def tree_cpu_s() -> float:
    """CPU time of the living tree, and of this process's children that have ended."""
    ended = psutil.Process().cpu_times()
    total = ended.children_user + ended.children_system
    for process in tree():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def tree_pss() -> int:
    """Proportional memory of the living tree: shared pages are divided among those who share them."""
    total = 0
    for process in tree():
        try:
            total += process.memory_full_info().pss
        except (psutil.Error, AttributeError):
            continue
    return total


class Drawing:
    """Draws batches of a loader and measures. Each phase is told as it ends, so that a hang is known by its phase."""

    def __init__(
        self, loader: Iterable[Any], order: Order, after: Callable[[Any], None], tell: Callable[..., None]
    ) -> None:
        self._tell, self._told_s = tell, time.monotonic()
        self._slow_s = SLOW_TIMES * order.seconds + SLOW_S
        self._loader = loader
        self._order = order
        self._after = after
        self._round = max(1, order.workers)
        self._batches: Iterator[Any] = iter(loader)
        self.waited_s = 0.0

    def _next(self) -> Any:
        began = time.monotonic()
        batch = next(self._batches)
        self.waited_s += time.monotonic() - began
        self._lives()
        self._after(batch)
        return batch

    def _lives(self) -> None:
        """A sign of life, once a second: slow is not hung."""
        if time.monotonic() - self._told_s > SIGN_EVERY_S:
            self._tell("lives")
            self._told_s = time.monotonic()

    def first(self) -> Any:
        """The first batch. StopIteration where there is none."""
        return self._next()

    def rate(self) -> dict[str, Any]:
        """Batches a second in whole rounds after a first one, or over whole epochs where they are short."""
        begun = time.monotonic()
        try:
            for _ in range(self._round):
                self._next()
                if time.monotonic() - begun > self._slow_s:
                    break
        except StopIteration:
            return self._epochs(0, 0.0)
        self.waited_s, began, count, cpu_s = 0.0, time.monotonic(), 0, tree_cpu_s()
        while True:
            try:
                self._next()
            except StopIteration:
                return self._epochs(count, time.monotonic() - began)
            count += 1
            spent = time.monotonic() - began
            if spent >= self._order.seconds and (count % self._round == 0 or spent > self._slow_s):
                found = {"rate": count / spent, "cpu_s": (tree_cpu_s() - cpu_s) / count}
                return {**found, "wait_share": self.waited_s / spent if self._order.step_s else None, "steady": True}

    def _epochs(self, before: int, before_s: float) -> dict[str, Any]:
        """Whole epochs, seams included; what was seen before where a loader can be run over only once.

        The first is not measured: workers that had nothing to do so far may still be starting; it waits for them.
        """
        passed = self._pass()
        self.waited_s, began, count, cpu_s = 0.0, time.monotonic(), 0, tree_cpu_s()
        while passed and (time.monotonic() - began < self._order.seconds or not count):
            passed = self._pass()
            count += passed
        spent = time.monotonic() - began
        if not count:
            count, spent = before, before_s
        share = self.waited_s / spent if self._order.step_s and spent else None
        cost_s = max(0.0, tree_cpu_s() - cpu_s) / count if count else 0.0
        return {"rate": count / spent if spent else 0.0, "cpu_s": cost_s, "wait_share": share, "steady": False}

    def _pass(self) -> int:
        """One whole epoch; how many batches it had."""
        count, self._batches = 0, iter(self._loader)
        try:
            while True:
                self._next()
                count += 1
        except StopIteration:
            return count

    def again(self, rate: float) -> float | None:
        """Seconds from one epoch to the first batch of the next; batches under way are let finish first."""
        time.sleep(min(SETTLE_S_MAX, self._order.workers * self._order.prefetch / rate))
        began = time.monotonic()
        del self._batches
        self._batches = iter(self._loader)
        try:
            self._next()
        except StopIteration:
            return None
        return time.monotonic() - began


def copier(order: Order) -> Callable[[Any], None]:
    """What is done with each batch: to the GPU where page-locked memory is tried, then the training step's time."""
    torch = importlib.import_module("torch") if "pin_memory" in order.arguments else None
    cuda = torch is not None and torch.cuda.is_available()

    def move(value: Any) -> None:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for part in value:
                move(part)
        elif torch is not None and isinstance(value, torch.Tensor):
            value.to("cuda", non_blocking=True)

    def after(batch: Any) -> None:
        if cuda and torch is not None:
            move(batch)
            torch.cuda.synchronize()
        if order.step_s:
            time.sleep(order.step_s)

    return after


def run(order: Order, tell: Callable[..., None]) -> None:
    """The whole trial."""
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    factory = load_factory(order.target)
    takes = knobs_of(factory, order.target)
    if order.probe:
        torch = sys.modules.get("torch")
        tell("probed", takes=takes, cuda=bool(torch is not None and torch.cuda.is_available()))
        return
    tell("loaded")
    began = time.monotonic()
    loader = factory(**order.target.extra, **order.arguments)
    if not hasattr(loader, "__iter__"):
        raise UsageError(f"{order.target.factory} returned a {type(loader).__name__}, which no loop can run over")
    try:
        length = len(loader)
    except TypeError:
        length = None
    tell("made", length=length)
    drawing = Drawing(loader, order, copier(order), tell)
    try:
        batch = drawing.first()
    except StopIteration:
        tell("empty")
        return
    nbytes, samples = size_of(batch)
    del batch
    tell("first", first_s=time.monotonic() - began, batch_bytes=nbytes, batch_samples=samples)
    found = drawing.rate()
    tell("measured", ram_bytes=tree_pss(), **{name: value for name, value in found.items() if name != "steady"})
    if order.again and found["steady"] and not isinstance(loader, Iterator):  # an iterator has one pass only
        tell("again", again_s=drawing.again(found["rate"]))
    tell("done")


def end_with(tuner: int) -> None:
    """Kill this process's whole session, workers and all, once the tuner is gone: nobody else would."""
    while os.getppid() == tuner:
        time.sleep(LOOK_EVERY_S)
    kill_all(os.getsid(0))
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Read the order, run it, tell."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    told = os.fdopen(int(sys.argv[1]), "w", buffering=1)

    def tell(event: str, **values: Any) -> None:
        told.write(json.dumps({"event": event, **values}) + "\n")
        told.flush()

    def fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        ours = isinstance(error, StokerError)
        message = error.message if isinstance(error, StokerError) else reason_of(error)
        hint = error.hint if isinstance(error, StokerError) else None
        tell("error", usage=isinstance(error, UsageError), ours=ours, message=message, hint=hint)
        os._exit(1)

    sys.excepthook = fail  # whatever a user's factory raises is what the trial has found
    order = Order.from_json(sys.stdin.read())
    sys.path.insert(0, str(Path.cwd()))
    run(order, tell)
    os._exit(0)  # workers that do not end must not hold up the tuner: it kills what is left of the group


if __name__ == "__main__":
    main()
