"""Which tensors can be saved, and when two states need one plan: asked at each save, of every tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from stoker.errors import UsageError

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OWN_KINDS = (DTensor, AsyncCollectiveTensor)
"""Subclasses whose content is what copying them gives."""


def signature_of(planner: Any) -> tuple[object, ...]:
    """Equal as long as names, shapes, types and placements are: then the plan stays. UsageError for what no plan can
    hold."""
    found: list[object] = []
    for name, value in planner.state_dict.items():
        if not isinstance(value, torch.Tensor):
            found.append(name)
            continue
        check_kind(name, value)
        if isinstance(value, DTensor):
            mesh = value.device_mesh
            found.append((name, value.shape, value.dtype, value.placements, mesh.mesh_dim_names, mesh.shape))
        else:
            found.append((name, value.shape, value.dtype, value.is_cuda))  # a GPU's goes into page-locked memory
    return tuple(found)


def check_kind(name: str, tensor: torch.Tensor) -> None:
    """UsageError for a tensor whose content is not the row of numbers that its shape promises."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "a nested one" if tensor.is_nested else f"of layout {tensor.layout}"
        raise UsageError(f"{name}: only dense tensors can be saved, this is {layout}", "save it by its parts")
    plain = type(tensor) in _PLAIN
    if tensor.is_meta or tensor.is_quantized or (not plain and is_lazy(tensor)):
        raise UsageError(f"{name}: only tensors with memory of their own can be saved, not meta, lazy or quantized")
    if plain:
        return
    for one in (tensor, getattr(tensor, "_local_tensor", tensor)):
        kind = type(one)
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not isinstance(one, _OWN_KINDS):
            raise UsageError(
                f"{name}: a {kind.__name__} keeps more than its shape shows, which would be lost",
                "save the tensors that it consists of, or a plain one made of it",
            )
