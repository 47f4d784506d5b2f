"""litData from S3: chunks of stoker's shard size, written by its `optimize`, brought into an empty cache folder; its defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rival_cold_run import SAMPLES, SHARDS, samples
from rival_kit import torch_options

PACKAGES = ("litdata", "torch")
PREFIX = "litdata"


def shard(number: int) -> Iterable[dict[str, bytes]]:
    """The samples of one shard."""
    for _, raw in samples(number):
        yield {"bin": raw}


def prepare(folder: Path) -> None:
    """As many samples a chunk as elsewhere a shard."""
    import litdata

    options: dict[str, Any] = {"num_workers": 1, "start_method": "fork", "verbose": False}
    litdata.optimize(shard, list(range(SHARDS)), str(folder), chunk_size=SAMPLES, **options)


def raws(batch: list[dict[str, Any]]) -> list[bytes]:
    """The one field of each sample."""
    return [sample["bin"] for sample in batch]


def cold(url: str, cache: Path, batch: int) -> Callable[[], Iterable[list[bytes]]]:
    """See `rival_cold_run`."""
    import litdata
    from litdata.streaming import downloader

    # it has no way to say that a server speaks without TLS, which obstore, its quickest client, refuses otherwise
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}

    def make() -> Iterable[list[bytes]]:
        data = litdata.StreamingDataset(
            url, cache_dir=str(cache), shuffle=True, drop_last=False, storage_options=options
        )
        return litdata.StreamingDataLoader(data, collate_fn=raws, **torch_options(batch))  # type: ignore[no-any-return]

    return make
