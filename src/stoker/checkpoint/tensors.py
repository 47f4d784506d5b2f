"""One of the files here that import torch: from what training holds to bytes in staging memory.

`Plan` is made once for as long as names, shapes and types stay: torch.distributed.checkpoint's own planner says which
rank writes which piece, `layout` says where it lies. After that a save is `Staging.fill`: one copy a tensor into memory
that was touched before, and small values pickled anew. Values that are no tensors are taken by value at that moment; of
a value that several ranks have, the lowest rank's is saved, whole, since torch's planner would take each leaf from
another rank.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.tensor import DTensor

from stoker.checkpoint import shortcut
from stoker.checkpoint.archive import ALIGN_BYTES, PICKLE_PROTOCOL, Shell, is_plain, plain_archive, shell
from stoker.checkpoint.layout import Layout, lay_out
from stoker.checkpoint.names import objects_file
from stoker.device import PageLocked
from stoker.errors import CheckpointError, UsageError
from stoker.machine import memory_bytes_free
from stoker.units import format_bytes

State = Mapping[str, Any]


def torch_version() -> str:
    """What wrote a checkpoint."""
    return str(torch.__version__)


# --- from models and optimizers to plain state ---


def owner_of(optimizer: torch.optim.Optimizer, state: State) -> torch.nn.Module:
    """The module in *state* whose parameters an optimizer steps. UsageError when there is none."""
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for value in state.values():
        if isinstance(value, torch.nn.Module) and stepped <= {id(one) for one in value.parameters()}:
            return value
    raise UsageError(
        "an optimizer's parameters belong to no model of the same state",
        'save them together: {"model": model, "optimizer": optimizer}',
    )


def plain_state(state: State) -> dict[str, Any]:
    """Nested dicts of tensors and values: parameters and optimizer states under their qualified names, so that they can
    be loaded on another world size. Live tensors, not copies."""
    if not isinstance(state, Mapping) or not state or not all(isinstance(name, str) for name in state):
        raise UsageError(f'a state is a dict with text keys, as {{"model": model}}, found {type(state).__name__}')
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, torch.nn.Module):
            plain[name] = model_state(value)
        elif isinstance(value, torch.optim.Optimizer):
            owner = owner_of(value, state)
            plain[name] = Whole(value.state_dict()) if shortcut.by_closure(value) else optimizer_state(owner, value)
        elif hasattr(value, "state_dict") and not isinstance(value, torch.Tensor):
            plain[name] = _whole_leaves(name, value.state_dict())
        else:
            plain[name] = _whole_leaves(name, value)
    return plain


@dataclass(frozen=True)
class Whole:
    """A dict that is one value, mostly without tensors. torch would take it apart and turn its keys into text."""

    value: Any


def _whole_leaves(where: str, value: Any) -> Any:
    """The same, with every dict that holds no tensor made one value. UsageError where torch would lose a key's type."""
    if isinstance(value, Mapping):
        if not _holds_tensors(value):
            return Whole(value)
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            hint = "give the optimizer or module itself, not its state_dict()" if strange == 0 else None
            raise UsageError(f"{where}: a dict that holds tensors has the key {strange!r}, which is no text", hint)
        return {key: _whole_leaves(f"{where}.{key}", one) for key, one in value.items()}
    if not isinstance(value, list) or not _holds_tensors(value):
        return value
    return [_whole_leaves(f"{where}.{number}", one) for number, one in enumerate(value)]


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensors, value.values()))
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensors, value)))


def model_state(model: torch.nn.Module) -> dict[str, Any]:
    """A model's state by qualified name."""
    found = shortcut.model_state(model)
    if found is None:
        found = dict(get_model_state_dict(model))
        shortcut.learn_model(model, found)
    return found


def optimizer_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state by parameter name. torch takes a step of length 0 to make up a state that is not there yet;
    that would count as a step and start momentum, so it is undone and "no state yet" is what is saved."""
    fresh = not optimizer.state
    found = None if fresh else shortcut.optimizer_state(optimizer)
    if found is None:
        found = dict(get_optimizer_state_dict(model, optimizer))
        if not fresh:
            shortcut.learn_optimizer(optimizer, found)
    if fresh and optimizer.state:
        optimizer.state.clear()
        found["state"] = {}
    return found


# --- how one tensor, or one value, is stored ---


class _Describer(pickle.Pickler):
    """Pickles a tensor as `torch.save` does: with a reference to its storage in place of the bytes."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):
            typed: Any = obj  # torch leaves these two methods untyped
            return ("storage", getattr(torch, typed._pickle_storage_type()), "0", "cpu", typed._size())
        if isinstance(obj, torch.UntypedStorage):
            return ("storage", torch.UntypedStorage, "0", "cpu", obj.nbytes())
        return None


def tensor_shell(tensor: torch.Tensor) -> Shell:
    """The archive around the bytes of a contiguous CPU tensor that fills its storage."""
    out = io.BytesIO()
    _Describer(out, protocol=PICKLE_PROTOCOL).dump(tensor)
    return shell(out.getvalue(), tensor.nbytes)


_NO_PICKLE = (pickle.PickleError, AttributeError, TypeError, ValueError, RuntimeError)  # of foreign values


def value_archive(name: str, value: object) -> bytes:
    """A value that is no tensor, as `torch.save` stores it. UsageError for what resuming would refuse to unpickle."""
    value = value.value if isinstance(value, Whole) else value
    if not is_plain(value):
        out = io.BytesIO()
        try:
            torch.save(value, out)
            torch.load(io.BytesIO(out.getvalue()), weights_only=True)
        except _NO_PICKLE as error:
            raise UsageError(
                f"{name}: a {type(value).__name__} cannot be loaded without running foreign code",
                "save tensors, numbers, text, bytes, None and dicts, lists and tuples of them; numpy's by .item()",
            ) from error
        return out.getvalue()
    return plain_archive(value)


# --- which rank writes what ---


@dataclass(frozen=True)
class Plan:
    """What one rank writes, and, for the coordinator, the description of it all."""

    rank: int
    items: tuple[WriteItem, ...]
    layout: Layout
    shells: tuple[Shell, ...]
    signature: tuple[object, ...]
    metadata: Metadata | None
    places: Mapping[MetadataIndex, Any] = field(default_factory=dict)
    """Coordinator only: where every rank's tensors lie."""


def flat(state: Mapping[str, Any], coordinator: bool) -> DefaultSavePlanner:
    """torch's planner over a plain state."""
    planner = DefaultSavePlanner()
    try:
        planner.set_up_planner(dict(state), None, coordinator)
    except ValueError as error:
        raise UsageError(f"two parts of the state have one name: {error}", "names are joined by dots") from error
    return planner


def global_plan(planner: DefaultSavePlanner, offers: Sequence[SavePlan]) -> list[Plan]:
    """What each rank writes; the first plan, the coordinator's, knows where all lies."""
    taken: set[str] = set()
    whole = []
    for offer in offers:  # a value that is no tensor: the lowest rank's, so that one rank's leaves stay together
        mine = [one for one in offer.items if one.type != WriteItemType.BYTE_IO or one.index.fqn not in taken]
        taken |= {one.index.fqn for one in mine if one.type == WriteItemType.BYTE_IO}
        whole.append(replace(offer, items=mine))
    plans, metadata = planner.create_global_plan(whole)
    made = [rank_plan(rank, plan) for rank, plan in enumerate(plans)]
    places: dict[MetadataIndex, Any] = {}
    for one in made:
        tensors = [item for item in one.items if item.type != WriteItemType.BYTE_IO]
        for item, placed in zip(tensors, one.layout.placed, strict=True):
            places[item.index] = _StorageInfo(placed.file, placed.file_offset, placed.nbytes)
    made[0] = replace(made[0], metadata=metadata, places=places)
    return made


def rank_plan(rank: int, plan: SavePlan) -> Plan:
    """One rank's files."""
    shells = tuple(_shell_of(item) for item in plan.items if item.type != WriteItemType.BYTE_IO)
    return Plan(rank, tuple(plan.items), lay_out(rank, shells), shells, (), None)


_shells: dict[tuple[torch.dtype, torch.Size], Shell] = {}


def _shell_of(item: WriteItem) -> Shell:
    data = item.tensor_data
    assert data is not None and data.properties.layout == torch.strided  # see kinds.check_kind
    key = (data.properties.dtype, data.chunk.sizes)
    if key not in _shells:
        # Its pages are never touched, so a tensor of any size costs nothing here.
        _shells[key] = tensor_shell(torch.empty(data.chunk.sizes, dtype=data.properties.dtype))
    return _shells[key]


# --- the copy ---

_serials = itertools.count()


class Staging:
    """Memory of a plan's size, shared with the writing process: touched once, then used for every save."""

    def __init__(self, plan: Plan, *, pin: bool) -> None:
        self.plan = plan
        self.serial = next(_serials)
        self.nbytes = plan.layout.nbytes
        self.pinned = pin
        self.descriptor, self._owner = -1, os.getpid()
        self._filling = False
        self._locked: PageLocked | None = None
        self._stream: Any = None
        self._copied: Any = None
        self._views: list[torch.Tensor | None] = []
        if self.nbytes:
            with contextlib.ExitStack() as undo:
                undo.callback(self.close)
                self._allocate(pin)
                undo.pop_all()

    def _allocate(self, pin: bool) -> None:
        free = memory_bytes_free()
        if self.nbytes > free:
            raise CheckpointError(
                f"staging needs {format_bytes(self.nbytes)} of memory, {format_bytes(free)} is free to this process",
                "shard the state over more ranks, or give the job more memory",
            )
        self.descriptor = os.memfd_create("stoker-checkpoint", os.MFD_CLOEXEC)
        os.posix_fallocate(self.descriptor, 0, self.nbytes)
        self._map = mmap.mmap(self.descriptor, self.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        tensors = [item for item in self.plan.items if item.type != WriteItemType.BYTE_IO]
        for item, one, placed in zip(tensors, self.plan.shells, self.plan.layout.placed, strict=True):
            at = placed.image_offset
            self._map[at : at + len(one.head)] = one.head
            end = at + one.nbytes
            self._map[end - len(one.tail) : end] = one.tail
            self._views.append(_view(whole, item, placed.data_offset, one.data_bytes))
        if pin:
            self._locked = PageLocked(whole.data_ptr(), self.nbytes)
            cuda: Any = torch.cuda  # torch leaves its run-time calls untyped
            self._stream = cuda.Stream()

    def fill(self, planner: DefaultSavePlanner, guarded: Set[int], copied: Callable[[int], None]) -> None:
        """Copy every tensor in; *copied* is told after each how many bytes are there. From a GPU copies run, untold, on
        a stream of their own, beside what training does next.
        *guarded*: addresses of tensors that only an optimizer changes, which waits by `guard`. All others (buffers that
        the next forward changes, tensors that nobody owns) are copied first, and the current stream waits for those.
        """
        self._filling = True
        try:
            self._fill(planner, guarded, copied)
        finally:
            self._filling = False

    def _fill(self, planner: DefaultSavePlanner, guarded: Set[int], copied: Callable[[int], None]) -> None:
        every = zip(self._views, self._live(planner), self.plan.layout.placed, strict=True)
        copies = [(one[0], one[1], one[2].image_offset + one[2].nbytes) for one in every if one[0] is not None]
        if self._stream is None:
            for view, live, end in copies:
                view.copy_(live)
                copied(end)
            return
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._copy(one[:2] for one in copies if one[1].data_ptr() not in guarded)
            current.wait_event(self._stream.record_event())
            self._copy(one[:2] for one in copies if one[1].data_ptr() in guarded)
            self._copied = self._stream.record_event()

    def _live(self, planner: DefaultSavePlanner) -> Iterator[torch.Tensor]:
        """The live tensors in the order of their places."""
        for item in self.plan.items:
            if item.type != WriteItemType.BYTE_IO:
                found: Any = planner.resolve_data(item)
                yield found.detach()

    def _copy(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for view, live in pairs:
            view.copy_(live, non_blocking=True)
            if live.is_cuda:
                live.record_stream(self._stream)  # its memory is not given to others while it is read here

    def guard(self) -> None:
        """Let the current stream wait until the copies of the last `fill` are done; the host does not wait."""
        copied = self._copied
        if copied is not None:
            torch.cuda.current_stream().wait_event(copied)

    def settle(self) -> None:
        """Wait until all copies of the last `fill` are done. From any thread."""
        copied = self._copied
        if copied is not None:
            copied.synchronize()

    def close(self) -> None:
        """Give the memory back, even where the writing process still maps it: the next one may need the room."""
        self.settle()
        if self._locked is not None:
            self._locked.close()
        self._views = []
        if self.descriptor >= 0:
            if os.getpid() == self._owner and not self._filling:  # who closes this in mid-copy must not end the process
                os.ftruncate(self.descriptor, 0)
            os.close(self.descriptor)
            self.descriptor = -1


def _view(whole: torch.Tensor, item: WriteItem, at: int, nbytes: int) -> torch.Tensor | None:
    """A tensor over its place in the staging memory; None for one without elements."""
    assert item.tensor_data is not None
    if nbytes == 0:
        return None
    return whole[at : at + nbytes].view(item.tensor_data.properties.dtype).view(item.tensor_data.chunk.sizes)


def guarded_by_optimizers(state: State) -> set[int]:
    """Addresses of the tensors that only optimizers of *state* change: parameters and the optimizers' own."""
    found: set[int] = set()
    for value in state.values():
        if isinstance(value, torch.optim.Optimizer):
            own = [one for states in value.state.values() for one in states.values() if isinstance(one, torch.Tensor)]
            stepped = [parameter for group in value.param_groups for parameter in group["params"]]
            for one in (*own, *stepped):
                found.add((one.to_local() if isinstance(one, DTensor) else one).data_ptr())
    return found


def any_on_gpu(planner: DefaultSavePlanner) -> bool:
    """Whether some tensor lies on a GPU, so that staging memory is page-locked."""
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in planner.state_dict.values())


def objects_of(plan: Plan, planner: DefaultSavePlanner) -> tuple[bytes, list[tuple[MetadataIndex, int, int]]]:
    """This rank's values that are no tensors, as one file's bytes, and where in it each lies."""
    out = bytearray()
    found = []
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            data = value_archive(item.index.fqn, planner.lookup_object(item.index))
            found.append((item.index, len(out), len(data)))
            out += data + b"\0" * (-len(data) % ALIGN_BYTES)
    return bytes(out), found


def metadata_bytes(plan: Plan, objects: Sequence[tuple[int, MetadataIndex, int, int]]) -> bytes:
    """The bytes of `.metadata`: the coordinator's plan, and where each rank's other values lie (rank, index, offset,
    length)."""
    assert plan.metadata is not None
    places = dict(plan.places)
    for rank, index, offset, length in objects:
        places[index] = _StorageInfo(objects_file(rank), offset, length)
    return pickle.dumps(replace(plan.metadata, storage_data=places, version="1.0.0"))
