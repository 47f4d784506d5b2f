"""Raw → shards: decide the cut, transform, write, resume."""

from stoker.pack.job import PackReport, pack
from stoker.pack.transform import Transform

__all__ = ["pack", "PackReport", "Transform"]
