"""Raw → shards: decide the cut, transform, write, resume. `stoker.pack` is this room and, called, its function."""

import sys
import types

from stoker.pack.job import PackReport, pack
from stoker.pack.transform import Transform


class _CallableRoom(types.ModuleType):
    """Lets `stoker.pack(src, dst)` mean the function although the room has the same name."""

    __call__ = staticmethod(pack)


sys.modules[__name__].__class__ = _CallableRoom

__all__ = ["pack", "PackReport", "Transform"]
