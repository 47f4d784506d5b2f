"""Where bytes lie: objects by key under one URL. `connect` gives a store; `base` says what every store promises."""

from stoker.store.base import Buffer, ByteRange, HasPaths, ObjectInfo, Store, Wrapper
from stoker.store.digest import TreeDigest, digest_of
from stoker.store.local import Local
from stoker.store.memory import Memory
from stoker.store.options import StoreOptions
from stoker.store.url import check_there, connect, expand, parse
from stoker.store.wrap import innermost

__all__ = [
    "Buffer", "ByteRange", "HasPaths", "ObjectInfo", "Store", "Wrapper",
    "check_there", "connect", "expand", "parse", "innermost", "StoreOptions",
    "Local", "Memory", "TreeDigest", "digest_of",
]  # fmt: skip
