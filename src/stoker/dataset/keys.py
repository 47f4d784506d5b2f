"""The keys of a batch, looked up when somebody asks: most loops never do, and a lookup costs more than a copied row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np


class Keys(Sequence[str]):
    """The keys of *samples*, int64 [n], in order: reads like a list, equals one, and is pickled as one."""

    def __init__(self, key: Callable[[int], str], samples: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._key = key
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self._key(sample) for sample in self._samples[at].tolist()]
        return self._key(int(self._samples[at]))

    def __iter__(self) -> Iterator[str]:
        return map(self._key, self._samples.tolist())

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | tuple | Keys) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list[str]], tuple[list[str]]]:
        return list, (list(self),)
