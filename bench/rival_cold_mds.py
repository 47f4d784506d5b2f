"""MosaicML streaming from S3: MDS shards of stoker's size, brought by its own downloader into an empty local folder.

Its defaults, but for the shuffle: over two shards, as the others here; by default it is over all of so few, which are brought first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rival_cold_run import SAMPLES, SHARD_BYTES, every_sample
from rival_kit import torch_options

PACKAGES = ("mosaicml-streaming", "torch")
PREFIX = "mds"
HEADERS_BYTES = 64_000
"""Room in a shard for what MDS writes beside the samples: as many samples a shard as elsewhere."""


def prepare(folder: Path) -> None:
    """MDS shards of bytes."""
    import streaming

    with streaming.MDSWriter(out=str(folder), columns={"bin": "bytes"}, size_limit=SHARD_BYTES + HEADERS_BYTES) as out:
        for raw in every_sample():
            out.write({"bin": raw})


def raws(batch: list[dict[str, Any]]) -> list[bytes]:
    """The one field of each sample."""
    return [sample["bin"] for sample in batch]


def cold(url: str, cache: Path, batch: int) -> Callable[[], Iterable[list[bytes]]]:
    """See `rival_cold_run`."""
    import streaming
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    streaming.base.util.clean_stale_shared_memory()

    def make() -> Iterable[list[bytes]]:
        data = streaming.StreamingDataset(
            remote=url, local=str(cache), shuffle=True, batch_size=batch, shuffle_block_size=2 * SAMPLES
        )
        for (
            stream
        ) in data.streams:  # else the forked workers share the connection that brought the index, and hang for a minute
            stream._downloader.clean_up()
        return DataLoader(data, collate_fn=raws, **torch_options(batch))

    return make
