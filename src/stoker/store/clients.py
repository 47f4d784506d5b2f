"""Makes obstore's clients from options. The only place that knows how obstore spells its settings."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stoker.errors import MissingExtraError, UnsupportedError, UsageError
from stoker.store.options import StoreOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_BODY_S_MAX = 24 * 3600
"""obstore's own limit covers a whole body; ours is the silence between two reads."""
_NO_RETRIES: Any = {"max_retries": 0, "retry_timeout": timedelta(0)}


_first_pid: int | None = None
"""The process that used obstore first."""


def check_not_forked(url: str) -> None:
    """UnsupportedError in a child that was forked after its parent used obstore.

    obstore has one runtime a process, whose threads a fork leaves behind: without this check the child would hang.
    """
    global _first_pid
    _first_pid = _first_pid or os.getpid()
    if _first_pid != os.getpid():
        raise UnsupportedError(
            f"{url}: this process was forked from one (pid {_first_pid}) that had used an object store already",
            'start processes by "spawn" or "forkserver", as in DataLoader(multiprocessing_context="spawn")',
        )


def make_client(scheme: str, host: str, options: StoreOptions) -> ObjectStore:
    """A client for a bucket, container or host."""
    from obstore.store import AzureStore, GCSStore, HTTPStore

    client: Any = {
        "allow_http": options.allow_http or scheme == "http",
        "connect_timeout": timedelta(seconds=options.connect_timeout_s),
        "read_timeout": timedelta(seconds=options.read_timeout_s),
        "timeout": timedelta(seconds=_BODY_S_MAX),
    }
    if scheme == "s3":
        return _s3(host, options, client)
    if scheme == "gs":
        anonymous: Any = {"skip_signature": True} if options.anonymous else {}
        return GCSStore(host, client_options=client, retry_config=_NO_RETRIES, **anonymous)
    if scheme == "az":
        anonymous = {"skip_signature": True} if options.anonymous else {}
        return AzureStore(host, client_options=client, retry_config=_NO_RETRIES, **anonymous)
    return HTTPStore.from_url(f"{scheme}://{host}", client_options=client, retry_config=_NO_RETRIES)


def _s3(bucket: str, options: StoreOptions, client: Any) -> ObjectStore:
    """S3. A profile goes through boto3, which knows SSO and assumed roles; obstore alone would ignore it."""
    from obstore.store import S3Store

    config: Any = {
        "virtual_hosted_style_request": not options.path_style,
        "skip_signature": bool(options.anonymous),
        "request_payer": options.requester_pays,
        "disable_bulk_delete": True,
        "endpoint": options.endpoint,
        "region": options.region,
        "access_key_id": options.access_key,
        "secret_access_key": options.secret_key,
    }
    chosen: Any = {name: value for name, value in config.items() if value is not None}
    if options.profile is None or options.anonymous:
        return S3Store(bucket, config=chosen, client_options=client, retry_config=_NO_RETRIES)
    provider = _profile(options.profile)
    chosen.setdefault("region", provider.config.get("region", "us-east-1"))
    return S3Store(bucket, config=chosen, client_options=client, retry_config=_NO_RETRIES, credential_provider=provider)


def _profile(name: str) -> Any:
    """Credentials of an AWS profile."""
    try:
        import boto3
        import botocore.exceptions
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtraError(
            f"AWS profile {name!r} needs boto3, which is not installed",
            "pip install 'stoker[aws]', or unset AWS_PROFILE",
        ) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except (botocore.exceptions.ProfileNotFound, botocore.exceptions.BotoCoreError, ValueError) as error:
        raise UsageError(f"AWS profile {name!r}: {error}", "see ~/.aws/config, or unset AWS_PROFILE") from error
