"""What can be said about a remote store beyond its URL, by the caller or the environment. Secrets print as nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stoker.errors import UsageError

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach a remote store. None: taken from the environment, else the server's default."""

    endpoint: str | None = None
    """Base URL of an S3 server that is not AWS; `http://` may be used when it is written here."""
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    profile: str | None = None
    """Name of an AWS profile (SSO and assumed roles too); needs the extra `aws`."""
    anonymous: bool | None = None
    requester_pays: bool = False
    path_style: bool | None = None
    """Bucket in the path instead of the host name. None: when there is an endpoint."""
    requests_max: int = 128
    """Requests in flight at once, per process."""
    bytes_per_s_max: float | None = None
    deadline_s: float = 300.0
    """Seconds of retrying after which a call gives up."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    """Seconds without a byte after which an attempt fails; a long body may take longer than this."""

    def completed(self, environment: Mapping[str, str] = os.environ) -> StoreOptions:
        """These options, with what is None taken from the AWS variables of *environment*."""
        endpoint = self.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        region = self.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        has_keys = self.access_key or environment.get("AWS_ACCESS_KEY_ID")  # these win over AWS_PROFILE, as in boto3
        profile = self.profile or (None if has_keys else environment.get("AWS_PROFILE")) or None
        anonymous = self.anonymous
        if anonymous is None:
            anonymous = any(_flag(environment, name) for name in ("AWS_ANONYMOUS", "AWS_SKIP_SIGNATURE"))
        path_style = self.path_style if self.path_style is not None else endpoint is not None
        return replace(
            self, endpoint=endpoint, region=region, profile=profile, anonymous=anonymous, path_style=path_style
        )

    @property
    def allow_http(self) -> bool:
        """Whether requests may go unencrypted: by AWS_ALLOW_HTTP, or because the endpoint says so itself."""
        return (self.endpoint or "").startswith("http://") or _flag(os.environ, "AWS_ALLOW_HTTP")


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise UsageError(f"{name} must be true or false, found {value!r}")
    return value in _TRUE
