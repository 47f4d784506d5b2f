"""webdataset from S3: the same tar shards as stoker by URLs that are signed beforehand, which it opens by its own `curl`.

Streamed, shards split over the workers, shards and a buffer of two shards' samples shuffled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rival_cold_run import SAMPLES, SHARDS
from rival_kit import torch_options

PACKAGES = ("webdataset", "torch")
PREFIX = "cold"


def prepare(folder: Path) -> None:
    """Nothing: it reads tar shards."""


def raw(sample: dict[str, Any]) -> bytes:
    """The one field."""
    return bytes(sample["bin"])


def cold(url: str, cache: Path, batch: int) -> Callable[[], Iterable[list[bytes]]]:
    """See `rival_cold_run`."""
    import boto3
    import webdataset

    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name=os.environ["AWS_REGION"])
    urls = [
        client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": f"{prefix}/shard_{shard:05d}.tar"})
        for shard in range(SHARDS)
    ]

    def make() -> Iterable[list[bytes]]:
        data = webdataset.WebDataset(urls, shardshuffle=SHARDS).shuffle(2 * SAMPLES).map(raw)
        return webdataset.WebLoader(data, collate_fn=list, **torch_options(batch))  # type: ignore[no-any-return]

    return make
