"""Finds out whether a server keeps its word on conditional writes.

JuiceFS's gateway, for one, ignores the condition and overwrites. Tried once per process on an object of its own, which
is removed again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which conditional writes a server truly gives."""

    create: bool
    """Refuses to create what exists (If-None-Match: *)."""
    update: bool
    """Replaces the version that is there and refuses to replace another (If-Match)."""


def probe_conditions(client: ObjectStore, prefix: str) -> Conditions:
    """Try both conditions on a fresh object below *prefix*."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

    refused = (AlreadyExistsError, PreconditionError, NotSupportedError)
    key = f"{prefix}/" * bool(prefix) + f".stoker-probe-{uuid.uuid4().hex}"

    def accepted(mode: Any) -> bool:
        try:
            obstore.put(client, key, b"probe", mode=mode, use_multipart=False)
        except refused:
            return False
        return True

    try:
        first = obstore.put(client, key, b"first", use_multipart=False)
        create = not accepted("create")
        update = create and accepted({"e_tag": first["e_tag"]}) and not accepted({"e_tag": first["e_tag"]})
        return Conditions(create, update)
    finally:
        obstore.delete(client, key)
