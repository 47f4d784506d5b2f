"""Room device: page-locked memory and copies on a side stream. Knows nothing of loaders. The only room that needs
torch."""

from stoker.device.copy import Copier
from stoker.device.pinned import PageLocked

__all__ = ["Copier", "PageLocked"]
