"""Sample number → shard and byte ranges: built once, written beside the data or on the node, memory-mapped by all."""

from stoker.index.build import Checked, Options, build, check_dataset, plain_findings, source_of
from stoker.index.check import check_index, check_objects, check_published
from stoker.index.entry import ObjectRef, Place, ShardEntry
from stoker.index.fetch import default_place
from stoker.index.layout import Manifest
from stoker.index.open import objects_named, open_index, options_of
from stoker.index.read import Index
from stoker.index.write import IndexWriter, merge

__all__ = [
    "Checked", "Index", "IndexWriter", "Manifest", "ObjectRef", "Options", "Place", "ShardEntry",
    "build", "check_dataset", "check_index", "check_objects", "check_published", "default_place", "merge",
    "objects_named", "open_index", "options_of", "plain_findings", "source_of",
]  # fmt: skip
