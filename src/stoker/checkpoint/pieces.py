"""Finds and aborts uploads in parts that were begun at an S3 server and never finished, by boto3 (extra `aws`).

Only files above 512 MB go up in parts. When the uploader is killed its parts stay at the server, are paid for, and are
shown by no list. A bucket's lifecycle rule (AbortIncompleteMultipartUpload) does the same without us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.clock import SYSTEM
from stoker.errors import MissingExtraError, StoreError, UsageError
from stoker.store import StoreOptions, parse


@dataclass(frozen=True, slots=True)
class Piece:
    """An unfinished upload."""

    key: str
    upload: str
    age_s: float


def open_pieces(url: str, *, age_s: float, options: StoreOptions | None = None) -> list[Piece]:
    """Unfinished uploads below *url* that were begun at least *age_s* seconds ago. UsageError where there is no S3."""
    place = parse(url)
    if place.scheme != "s3":
        return []
    botocore = _boto("botocore.exceptions")
    client = _client(options)
    now, found = SYSTEM.wall(), []
    try:
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=place.host, Prefix=place.path):
            for one in page.get("Uploads", []):
                piece = Piece(one["Key"], one["UploadId"], now - one["Initiated"].timestamp())
                if piece.age_s >= age_s and (not place.path or piece.key.startswith(place.path + "/")):
                    found.append(piece)
    except (botocore.BotoCoreError, botocore.ClientError) as error:
        raise StoreError(f"{url}: unfinished uploads cannot be listed: {error}") from error
    return found


def abort(url: str, pieces: Sequence[Piece], *, options: StoreOptions | None = None) -> None:
    """Abort unfinished uploads."""
    if not pieces:
        return
    client = _client(options)
    for piece in pieces:
        client.abort_multipart_upload(Bucket=parse(url).host, Key=piece.key, UploadId=piece.upload)


def _boto(name: str) -> Any:
    try:
        return __import__(name, fromlist=["x"])
    except ImportError as error:
        raise MissingExtraError("looking for unfinished uploads needs boto3", "pip install 'stoker[aws]'") from error


def _client(options: StoreOptions | None) -> Any:
    """boto3's client with the same settings as our store."""
    boto3, config = _boto("boto3"), _boto("botocore.config")
    chosen = (options or StoreOptions()).completed()
    if chosen.anonymous:
        raise UsageError("unfinished uploads cannot be listed without credentials")
    session = boto3.Session(profile_name=chosen.profile)
    return session.client(
        "s3",
        endpoint_url=chosen.endpoint,
        region_name=chosen.region,
        aws_access_key_id=chosen.access_key,
        aws_secret_access_key=chosen.secret_key,
        config=config.Config(s3={"addressing_style": "path" if chosen.path_style else "auto"}),
    )
