"""What a dataset is, and whether it is whole: `inspect` describes, `verify` finds damage, `salvage` copies the rest.

None of them writes into the dataset.
"""

from stoker.check.inspect import Inspected, inspect
from stoker.check.salvage import Salvaged, salvage
from stoker.check.verify import Verified, verify

__all__ = ["Inspected", "Salvaged", "Verified", "inspect", "salvage", "verify"]
