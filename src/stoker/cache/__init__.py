"""One node's copy of what is read: a folder on a local disk, shared by all processes, verified, never in the way."""

from stoker.cache.cache import Cache, CacheStatus
from stoker.cache.mapped import Mapped
from stoker.cache.objects import Objects, Read, WrongDigestError
from stoker.cache.prefetch import prefetch
from stoker.cache.streamed import Streamed
from stoker.cache.warm import Shards, WarmReport

__all__ = [
    "Cache",
    "CacheStatus",
    "Mapped",
    "Objects",
    "Read",
    "Shards",
    "Streamed",
    "WarmReport",
    "WrongDigestError",
    "prefetch",
]
