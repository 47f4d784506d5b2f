"""Room loader: samples in order, as batches, from a feeder process that never makes training wait."""

from stoker.loader.batch import Bad
from stoker.loader.buckets import Buckets
from stoker.loader.loader import Loader
from stoker.loader.plan import Budget
from stoker.loader.report import LoaderReport

__all__ = ["Bad", "Buckets", "Budget", "Loader", "LoaderReport"]
