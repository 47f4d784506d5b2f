"""What callers of a Checkpointer give and get."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.checkpoint import disk
from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.names import LOADER, own_of_rank
from stoker.checkpoint.planning import load_part
from stoker.checkpoint.saver import Save
from stoker.errors import CheckpointError, UsageError, reason_of
from stoker.store import parse

_log = logging.getLogger("stoker.checkpoint")


class HasState(Protocol):
    """What `loader=` may be: a `stoker.Loader`, or anything else whose state is JSON."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Resumed:
    """What `resume` went on from."""

    step: int
    name: str
    folder: Path
    """Where its files lie: loadable by `torch.distributed.checkpoint.load` too."""
    metrics: Mapping[str, float]
    loader: Mapping[str, Any] | None
    """The saved position of the data loader, also when none was given."""
    per_rank: Any
    """What this rank saved as `per_rank`; None when the number of ranks is another now."""
    world_size: int
    """Of the run that saved it."""


@dataclass(frozen=True)
class Status:
    """Where saving stands."""

    committed: str | None
    """The newest checkpoint that is complete on the local disk."""
    writing: bool
    failures: int
    """Saves that failed since the last one that succeeded. Above 0: look at `last.error`."""
    last: Save | None
    """The latest call of `save`."""
    remotes: tuple[tuple[str, str | None, str | None], ...]
    """For each remote: URL, newest checkpoint that is complete and verified there, what is wrong with it."""
    pending_uploads: int
    protected_age_s: float | None
    """Seconds since all remotes had all that they must have; None before that, or without a remote. When it grows, a
    remote is down or too slow."""


def json_of(loader: HasState) -> bytes:
    """A loader's position. UsageError when it is no JSON."""
    if not hasattr(loader, "state_dict"):
        raise UsageError(f"a {type(loader).__name__} has no state_dict()", "give a stoker.Loader, or save it as a part")
    state = loader.state_dict()
    try:
        if not isinstance(state, dict) or not _keys_are_text(state):
            raise TypeError("a dict with text keys is expected")
        return json.dumps(state).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"the loader's state is no JSON: {error}", "save it as a part of the state instead") from None


def _keys_are_text(value: object) -> bool:
    """JSON would turn all other keys into text without a word."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _keys_are_text(one) for key, one in value.items())
    return not isinstance(value, list | tuple) or all(map(_keys_are_text, value))


def finite(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """The metrics as numbers that JSON can hold: a loss that is not finite is left out with a warning, since it must
    not cost the checkpoint. UsageError for what is no number."""
    found = {}
    for name, value in (metrics or {}).items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"metric {name!r} is no number: {value!r:.80}", "give loss.item()") from None
        if math.isfinite(number):
            found[str(name)] = number
        else:
            _log.warning("stoker: metric %r is %s, which is not kept", name, number)
    return found


def position_of(folder: Path, manifest: Manifest) -> dict[str, Any] | None:
    """The saved position of the data loader, which was verified with all the rest."""
    if not any(entry.name == LOADER for entry in manifest.files):
        return None
    try:
        found = json.loads((folder / LOADER).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}/{LOADER}: cannot be read: {error}") from error
    return found if isinstance(found, dict) else None


def put_back(loader: HasState | None, folder: Path, manifest: Manifest) -> dict[str, Any] | None:
    """Put the data loader where it was; its saved position. A checkpoint that has none is told of: samples would be
    seen again, or not at all."""
    position = position_of(folder, manifest)
    if loader is not None and position is None:
        _log.warning("stoker: resume: %s was saved without a data loader: this one stays where it is", manifest.attempt)
    elif loader is not None:
        loader.load_state_dict(dict(position or {}))
    return position


def own_of(rank: int, world_size: int, folder: Path, manifest: Manifest) -> Any:
    """What this rank kept for itself, if there are as many ranks as then."""
    name, listed = own_of_rank(rank), {entry.name for entry in manifest.files}
    if not any(one.startswith("rank/") for one in listed):
        return None
    if manifest.world_size != world_size:
        _log.warning(
            "stoker: resume: per_rank values are dropped: saved by %d ranks, now %d", manifest.world_size, world_size
        )
        return None
    return load_part().own_value((folder / name).read_bytes()) if name in listed else None


def not_forked(pid: int) -> None:
    """CheckpointError where this is not process *pid*: the processes and locks that a forked child sees are its
    parent's."""
    if os.getpid() != pid:
        raise CheckpointError(
            f"this Checkpointer is that of process {pid}, of which this one, {os.getpid()}, was forked",
            "make one here, or call it there",
        )


def take_turn(turns: dict[object, None], mine: object) -> None:
    """CheckpointError beside another call. Each step is one that no signal and no thread can divide; the caller gives
    the turn back by `turns.pop(mine, None)` in a `finally` of its own, since a call of ours could be interrupted first.
    """
    turns[mine] = None
    if next(iter(list(turns))) is not mine:
        raise CheckpointError(
            "`save` or `resume` was called inside `save`, or by two threads at once",
            "in a signal handler call `wait`, not `save`; let one thread save",
        )


def choice(name: str, found: object, *allowed: str) -> None:
    """UsageError unless *found* is allowed."""
    if found not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, allowed))}, found {found!r}")


def positive(name: str, found: float | None) -> None:
    """UsageError unless *found* is None or a finite number above 0."""
    if found is None:
        return
    if isinstance(found, bool) or not isinstance(found, int | float) or not (0 < found < math.inf):
        raise UsageError(f"{name} must be a number above 0, found {found!r}")


def places(local: str | Path, remote: str | Path | Sequence[str | Path] | None) -> tuple[Path, list[str]]:
    """The local folder, made, and the URLs of the remotes. UsageError for what is no place, and for one place that is
    given twice under whatever names: a copy there would protect nothing. CheckpointError when it cannot be made."""
    remotes = [remote] if isinstance(remote, str | Path) else list(remote or ())
    for url in (local, *remotes):
        if not isinstance(url, str | Path):
            raise UsageError(f"local and remote are folders or URLs, found {url!r}")
    place = parse(local)
    if place.scheme != "file":
        raise UsageError(f"local must be a folder, found {local}", "give the bucket as remote=")
    root = Path(place.path)
    _make(root)
    taken = {os.path.realpath(root): "local"}
    for url in remotes:
        where = parse(url)
        key = os.path.realpath(where.path) if where.scheme == "file" else where.url
        if key in taken:
            raise UsageError(f"{url} is given as {taken[key]} and as remote", "leave it out, or use another folder")
        taken[key] = "another remote"
    return root, [str(url) for url in remotes]


def _make(root: Path) -> None:
    try:
        disk.make_root(root)
    except OSError as error:
        raise CheckpointError(f"{root}: the folder cannot be made: {reason_of(error)}") from error
    if not root.is_dir():
        raise UsageError(f"{root} is no folder", "give a folder that is there, or can be made")
