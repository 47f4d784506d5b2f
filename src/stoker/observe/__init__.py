"""Room observe: how long any loop waits for its data, whatever the data comes from.

`stoker.observe` is the public function, and this folder has its name: importing anything of the folder puts the module
where the function is looked for. So the module can be called, and both are the same to who calls.
"""

import sys
from types import ModuleType

from stoker.observe.observe import Observed, observe
from stoker.observe.report import ObserveReport, Spread

__all__ = ["ObserveReport", "Observed", "Spread", "observe"]


class _Callable(ModuleType):
    __call__ = staticmethod(observe)


sys.modules[__name__].__class__ = _Callable
