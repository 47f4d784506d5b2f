"""Sample number → shard and byte ranges: built once, written beside the data or on the node, memory-mapped by all."""

from stoker.index.build import Options, build, check, source_of
from stoker.index.entry import ObjectRef, Place, ShardEntry
from stoker.index.fetch import default_place
from stoker.index.layout import Manifest
from stoker.index.merge import IndexWriter, forget, merge
from stoker.index.open import check_objects, open_index
from stoker.index.read import Index

__all__ = [
    "Index", "IndexWriter", "Manifest", "ObjectRef", "Options", "Place", "ShardEntry",
    "build", "check", "check_objects", "default_place", "forget", "merge", "open_index", "source_of",
]  # fmt: skip
