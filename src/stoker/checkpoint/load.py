"""The other file here that imports torch: from verified files back into live models and optimizers, in place.

Nothing is unpickled before its bytes were compared with the manifest, and even then only what a description of tensors
consists of: `.metadata` through a list of allowed names, everything else by torch's `weights_only`. Before the first
live tensor changes, every element that training wants is known to be in the files.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import struct
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed.checkpoint as dcp_room
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from stoker.checkpoint.coverage import Box, uncovered
from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.names import METADATA
from stoker.checkpoint.shortcut import by_closure
from stoker.checkpoint.tensors import State, flat, optimizer_state, owner_of, plain_state
from stoker.errors import CheckpointError, UsageError, reason_of

TOLD_MAX = 5
"""Names that an error lists; the rest is counted."""
_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    f"{_DCP}.metadata": {
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex",
        "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    f"{_DCP}.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
}  # fmt: skip


dcp: Any = dcp_room  # torch does not declare what it exports here


_BROKEN_PICKLE = (
    pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, IndexError, KeyError, OverflowError,
    MemoryError, RecursionError,
)  # fmt: skip
"""What unpickling arbitrary bytes ends in."""


class _Unpickler(pickle.Unpickler):
    """Knows the parts of a description of tensors and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a description of tensors")


def read_metadata(data: bytes, where: str) -> Metadata:
    """torch's description of a checkpoint, or CheckpointError."""
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except _BROKEN_PICKLE as error:
        raise CheckpointError(f"{where}: refused: {error}", "somebody may have tampered with it") from error
    if not isinstance(found, Metadata) or not isinstance(found.state_dict_metadata, dict):
        raise CheckpointError(f"{where}: holds a {type(found).__name__}, expected a description of tensors")
    return found


class _Reader(FileSystemReader):
    """torch's reader with a description that was checked already."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._checked = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._checked


class _Planner(DefaultLoadPlanner):
    """torch's planner that unpickles values without running foreign code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        found = torch.load(value, weights_only=True)
        _put(self.original_state_dict, self.mappings[read_item.dest_index.fqn], found)


def _put(root: Any, path: tuple[Any, ...], value: object) -> None:
    """Set the value at a path of keys, making dicts and lists on the way."""
    for key, following in itertools.pairwise(path):
        fresh: Any = [] if isinstance(following, int) else {}
        if isinstance(key, int):
            root.extend([None] * (key + 1 - len(root)))
            if root[key] is None:
                root[key] = fresh
            root = root[key]
        else:
            root = root.setdefault(key, fresh)
    if isinstance(path[-1], int):
        root.extend([None] * (path[-1] + 1 - len(root)))
    root[path[-1]] = value


@dataclass(frozen=True)
class Opened:
    """A verified checkpoint, ready to be loaded."""

    folder: Path
    manifest: Manifest
    metadata: Metadata

    @staticmethod
    def of(folder: Path, manifest: Manifest) -> Opened:
        """The checkpoint in a folder whose files were verified; CheckpointError when torch's description was not."""
        if not any(entry.name == METADATA for entry in manifest.files):
            raise CheckpointError(f"{folder}/{METADATA}: the manifest does not list it, so nobody vouches for it")
        return Opened(folder, manifest, read_metadata((folder / METADATA).read_bytes(), f"{folder}/{METADATA}"))

    def path_of(self, name: str) -> tuple[Any, ...]:
        """Where a saved name stands in the nested state."""
        found = (self.metadata.planner_data or {}).get(name, (name,))
        return tuple(found)

    def names_of(self, part: str) -> list[str]:
        """The saved names of one part of the state: of "model", all parameters."""
        return [name for name in self.metadata.state_dict_metadata if self.path_of(name)[0] == part]


# --- what to load into ---


def target_of(state: State, opened: Opened) -> dict[str, Any]:
    """Nested state whose tensors are the live ones; what is not live (a list that grew, a scheduler's numbers) is made
    to measure."""
    target: dict[str, Any] = {}
    for name, value in state.items():
        saved = opened.names_of(name)
        if isinstance(value, torch.optim.Optimizer) and by_closure(value):
            target.update({name: None} if saved else {})
        elif isinstance(value, torch.optim.Optimizer):
            found = optimizer_state_to_fill(owner_of(value, state), value)
            stateful = {opened.path_of(one)[2] for one in saved if opened.path_of(one)[1:2] == ("state",)}
            # A parameter that never had a gradient had no state: it was saved with none and gets none.
            kept = {one: own for one, own in found["state"].items() if one in stateful}
            target[name] = {**found, "state": kept}
        elif isinstance(value, torch.nn.Module):
            target[name] = plain_state({name: value})[name]
        else:
            plain = plain_state({name: value})[name]
            live = _live_tensors(name, plain)
            made: dict[str, Any] = {}
            for one in saved:
                _put(made, opened.path_of(one), _room_for(opened, one, live))
            for one, tensor in live.items():  # wanted, but not saved: the check of coverage will say so
                if one not in saved:
                    made[one] = tensor
            target.update(made)
    return target


def optimizer_state_to_fill(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state by parameter name, made up where there is none yet: its tensors will be overwritten."""
    if not optimizer.state:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None  # else torch does not make the state up
        return dict(get_optimizer_state_dict(model, optimizer))
    return optimizer_state(model, optimizer)


def _live_tensors(name: str, value: object) -> dict[str, torch.Tensor]:
    """The tensors of a plain part, by the name under which they are saved."""
    if value is None or (isinstance(value, Mapping) and not value):
        return {}
    planner = flat({name: value}, False)
    return {key: one for key, one in planner.state_dict.items() if isinstance(one, torch.Tensor)}


def _room_for(opened: Opened, name: str, live: Mapping[str, torch.Tensor]) -> Any:
    saved = opened.metadata.state_dict_metadata[name]
    if name in live:
        return live[name]
    return torch.empty(saved.size, dtype=saved.properties.dtype) if isinstance(saved, TensorStorageMetadata) else None


# --- whether it can be loaded ---


def problems(state: State, target: Mapping[str, Any], opened: Opened, *, strict: bool) -> list[str]:
    """Why loading would not give what was saved; nothing when it is safe. Reads and changes nothing."""
    planner = flat(target, False)
    saved = opened.metadata.state_dict_metadata
    found = [*_misfits(planner.state_dict, opened, strict=strict), *_other_groups(state, opened)]
    if strict:  # of a part that holds tensors only or nothing, the names tell
        lacking = [name for name, value in state.items() if name not in target and not opened.names_of(name)]
        found += [f"{_listed(lacking)}: wanted, but not in the checkpoint"] if lacking else []
    absent = [] if not strict else [name for name in saved if name not in planner.state_dict]
    wanted = {path[0] for path in map(opened.path_of, absent)} & set(target)
    unused = [name for name in absent if opened.path_of(name)[0] in wanted]
    if unused:
        found.append(f"{_listed(unused)}: saved, but there is no place for it in the state given")
    return found


def _other_groups(state: State, opened: Opened) -> Iterator[str]:
    """Optimizers with another number of parameter groups: no setting could be given back to the right one."""
    for name, value in state.items():
        paths = [opened.path_of(one) for one in opened.names_of(name)]
        saved = {path[2] for path in paths if path[1:2] == ("param_groups",)}
        if isinstance(value, torch.optim.Optimizer) and saved and len(saved) != len(value.param_groups):
            yield f"{name}: saved with {len(saved)} groups of parameters, wanted with {len(value.param_groups)}"


def _misfits(target: Mapping[str, Any], opened: Opened, *, strict: bool) -> Iterator[str]:
    saved, sizes = opened.metadata.state_dict_metadata, {entry.name: entry.size for entry in opened.manifest.files}
    missing = [name for name in target if name not in saved]
    if missing and strict:
        yield f"{_listed(missing)}: wanted, but not in the checkpoint"
    ends: dict[str, int] = {}
    for place in (opened.metadata.storage_data or {}).values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    for name, end in ends.items():
        if end > sizes.get(name, -1):
            yield f"{name}: the description reaches to byte {end}, the file has {sizes.get(name, 'no entry')}"
    for name, value in target.items():
        if name in saved:
            fault = _misfit(value, saved[name], strict=strict)
            if fault:
                yield f"{name}: {fault}"


def _misfit(value: object, saved: object, *, strict: bool) -> str | None:
    """What is wrong with one tensor or value; None when nothing is."""
    if isinstance(value, torch.Tensor) and value.is_meta:
        return "lies on the meta device, which holds nothing"
    if not isinstance(saved, TensorStorageMetadata):
        return "saved as a value, wanted as a tensor" if isinstance(value, torch.Tensor) else None
    if not isinstance(value, torch.Tensor):
        return "saved as a tensor, wanted as a value"
    if value.size() != saved.size:
        return f"saved with shape {tuple(saved.size)}, wanted with {tuple(value.size())}"
    if strict and value.dtype != saved.properties.dtype:
        return f"saved as {saved.properties.dtype}, wanted as {value.dtype}; strict=False converts"
    local: Any = value.to_local() if isinstance(value, DTensor) else value
    if torch._debug_has_internal_overlap(local) == 1:
        return "several of its elements share one place in memory (an expanded tensor?), so it cannot be loaded into"
    left = sum(uncovered(box, _saved_boxes(saved)) for box in _boxes(value))
    return f"{left} of {value.numel()} elements are in no file" if left else None


def _boxes(tensor: torch.Tensor) -> list[Box]:
    """Where a tensor's local elements lie in the whole."""
    if isinstance(tensor, DTensor):
        sharded: Any = tensor  # torch's protocol for tensors that can be checkpointed is untyped
        chunks = sharded.__create_chunk_list__()
        return [Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks]
    return [Box((0,) * tensor.dim(), tuple(tensor.size()))]


def _saved_boxes(saved: TensorStorageMetadata) -> list[Box]:
    return [Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in saved.chunks]


def _listed(names: list[str]) -> str:
    more = len(names) - TOLD_MAX
    return ", ".join(names[:TOLD_MAX]) + (f" and {more} more" if more > 0 else "")


# --- loading ---


def load(state: State, target: dict[str, Any], opened: Opened) -> None:
    """Load in place: live tensors get the saved values, then models, optimizers and the rest are told."""
    # An empty part has nothing to read, and torch's planner would ask for it as a value.
    wanted = {name: part for name, part in target.items() if not isinstance(part, Mapping) or part}
    _read(wanted, opened)
    for name, value in state.items():
        part: Any = wanted.get(name, target.get(name))
        if isinstance(value, torch.nn.Module):
            set_model_state_dict(value, part)
        elif isinstance(value, torch.optim.Optimizer) and not by_closure(value):
            _set_optimizer(owner_of(value, state), value, part)
        elif hasattr(value, "load_state_dict"):
            if name in wanted and part is not None:  # else strict=False, and it was not saved
                value.load_state_dict(part)
        elif isinstance(value, MutableMapping) and isinstance(part, Mapping):
            value.update(part)
        elif isinstance(state, MutableMapping) and opened.names_of(name):
            state[name] = part


def _read(wanted: dict[str, Any], opened: Opened) -> None:
    """Let torch fill nested state from the files; each rank for itself, since each knows what it needs."""
    planner, reader = _Planner(allow_partial_load=True), _Reader(opened.folder, opened.metadata)
    with warnings.catch_warnings():  # that no ranks are asked is what we want
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.load(wanted, storage_reader=reader, planner=planner, no_dist=True)
        except CheckpointException as error:
            reasons = "; ".join(reason_of(failure[0]) for failure in error.failures.values())
            raise CheckpointError(
                f"{opened.folder}: could not be read while loading: {reasons}",
                "the state is half loaded: load again, or exit",
            ) from error


def _set_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, part: Any) -> None:
    """Give an optimizer its state back; one that was saved before its first step gets none."""
    if part["state"]:
        # Parameters without a state are no fault here: `problems` has compared all names.
        set_optimizer_state_dict(model, optimizer, optim_state_dict=part, options=StateDictOptions(strict=False))
        return
    optimizer.state.clear()
    for group, saved in zip(optimizer.param_groups, part["param_groups"], strict=True):
        group.update({name: value for name, value in saved.items() if name != "params"})


def own_bytes(value: object) -> bytes:
    """What one rank keeps for itself."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def own_value(data: bytes) -> Any:
    """What a rank kept for itself."""
    return torch.load(io.BytesIO(data), weights_only=True)


# --- one file of it ---


def whole_state(opened: Opened) -> dict[str, Any]:
    """The nested state of a checkpoint in this process's memory, all tensors whole."""
    made: dict[str, Any] = {}
    for name in opened.metadata.state_dict_metadata:
        _put(made, opened.path_of(name), _room_for(opened, name, {}))
    _read(made, opened)
    return made


def export_pt(opened: Opened, file: BinaryIO) -> None:
    """Write the nested state as `torch.save` does; `torch.load` reads it with weights_only."""
    torch.save(whole_state(opened), file)


_SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def export_safetensors(opened: Opened, file: BinaryIO) -> list[str]:
    """Write the tensors, flat by name, in the safetensors format (its README, "Format"); the names of what it cannot
    hold: values that are no tensors. UsageError for a type that it does not know."""
    planner = flat(whole_state(opened), False)
    tensors = {name: value for name, value in planner.state_dict.items() if isinstance(value, torch.Tensor)}
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(opened.manifest.step)}}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _SAFETENSORS:
            raise UsageError(f"{name}: safetensors has no {tensor.dtype}", "export as .pt")
        header[name] = {
            "dtype": _SAFETENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]
        }  # fmt: skip
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        raw: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        file.write(memoryview(raw))
    return [name for name, one in opened.metadata.state_dict_metadata.items() if isinstance(one, BytesStorageMetadata)]
