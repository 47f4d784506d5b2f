"""stoker keeps GPUs fed. The public names, loaded when first used: `import stoker` imports neither torch nor
pyarrow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker import image
    from stoker.cache import Cache
    from stoker.checkpoint import Checkpointer
    from stoker.dataset import Dataset, Mixture, open, tokens  # noqa: A004  # the public name is `stoker.open`
    from stoker.decode import json, npy, pt
    from stoker.errors import SampleError, StokerError, UsageError
    from stoker.loader import Buckets, Budget, Loader, LoaderReport
    from stoker.observe import observe
    from stoker.order import Window
    from stoker.store import StoreOptions

__version__ = "0.1.0"

_HOMES = {
    "open": "stoker.dataset",
    "Dataset": "stoker.dataset",
    "tokens": "stoker.dataset",
    "Mixture": "stoker.dataset",
    "StoreOptions": "stoker.store",
    "Cache": "stoker.cache",
    "image": "stoker.image",
    "json": "stoker.decode",
    "npy": "stoker.decode",
    "pt": "stoker.decode",
    "Window": "stoker.order",
    "Loader": "stoker.loader",
    "LoaderReport": "stoker.loader",
    "Budget": "stoker.loader",
    "Buckets": "stoker.loader",
    "Checkpointer": "stoker.checkpoint",
    "observe": "stoker.observe",
    "StokerError": "stoker.errors",
    "UsageError": "stoker.errors",
    "SampleError": "stoker.errors",
}

__all__ = [
    "open", "Dataset", "tokens", "Mixture", "StoreOptions", "Cache", "image", "json", "npy", "pt", "Window", "Loader",
    "LoaderReport", "Budget", "Buckets", "Checkpointer", "observe", "StokerError", "UsageError", "SampleError",
]  # fmt: skip


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    module = importlib.import_module(home)
    value: object = getattr(module, name, module) if home == f"stoker.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
