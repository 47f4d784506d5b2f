"""Room dataset: store, format, index, decode and cache behind one face."""

from stoker.dataset.dataset import Dataset
from stoker.dataset.gather import Gatherer, Located
from stoker.dataset.keys import Keys
from stoker.dataset.mixture import Mixture
from stoker.dataset.open import open  # noqa: A004  # the public name is `stoker.open`
from stoker.dataset.read import RawSamples, SampleReader
from stoker.dataset.tokens import TokenDataset, sample_lengths, tokens

__all__ = [
    "Dataset", "Gatherer", "Keys", "Located", "Mixture", "RawSamples", "SampleReader", "TokenDataset", "open",
    "sample_lengths", "tokens",
]  # fmt: skip
