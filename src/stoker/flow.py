"""Work done side by side with a bound on what is in flight. The only surprise: results come in input order.

Every place that works in parallel uses these few pieces, so that each queue is bounded and the first error stops the
rest instead of being buried.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from stoker.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[int, int, int], None]
"""Called with (items done, items in all, bytes done). Items in all is 0 while it is not known."""


def no_progress(done: int, total: int, count_bytes: int) -> None:
    """The Progress of a caller that does not look."""


def parallel_map(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int, ahead: int | None = None
) -> Iterator[Result]:
    """Results of *work* in the order of *items*, at most *ahead* (default 2 × workers) of them in flight or waiting.

    The first exception in input order is raised where its result would have stood; work not yet begun is dropped, work
    under way is waited for, so nothing runs on after the iterator is closed.
    """
    if workers < 1:
        raise UsageError(f"workers must be at least 1, found {workers}")
    bound = ahead or 2 * workers
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="stoker")
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= bound:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Gate:
    """A count of permits that may be changed while threads wait: the bound on requests in flight.

    First come, first served: a permit that comes back goes to whoever waits longest, so a busy gate starves nobody.
    """

    def __init__(self, permits: int) -> None:
        self._permits = permits
        self._taken = 0
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._taken < self._permits and not self._waiting:
                self._taken += 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()  # released by whoever passes the permit on, which is then taken already
        except BaseException:  # interrupted while it waited
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._taken -= 1
                    self._pass_on()
            raise

    def __exit__(self, *failure: object) -> None:
        with self._lock:
            self._taken -= 1
            self._pass_on()

    def resize(self, permits: int) -> None:
        """Let *permits* through from now on; those inside finish undisturbed."""
        with self._lock:
            self._permits = permits
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting and self._taken < self._permits:
            self._taken += 1
            self._waiting.popleft().release()
