"""Sample number → shard and byte ranges: built once, written beside the data or on the node, memory-mapped by all."""

from stoker.index.entry import ObjectRef, Place, ShardEntry
from stoker.index.layout import Manifest
from stoker.index.merge import IndexWriter, merge
from stoker.index.read import Index

__all__ = ["Index", "IndexWriter", "Manifest", "ObjectRef", "Place", "ShardEntry", "merge"]
