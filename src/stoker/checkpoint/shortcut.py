"""The state of a model and its optimizer by qualified name, without asking torch for the names at every save.

torch's `get_model_state_dict` and `get_optimizer_state_dict` find each name anew by walking the modules: 40 µs a
tensor, more than copying it takes for a model of many small ones. The names stay as long as the parameters do, so torch
is asked once, its answer is compared with what a shortcut gives (the same tensors under the same names), and from then
on the shortcut is taken. Whatever it does not recognise, such as a parameter that is another object now, goes the long
way again.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HOOKS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")


@dataclass(frozen=True, slots=True)
class _ModelNames:
    keys: tuple[str, ...]
    """Of the module's own `state_dict`."""
    names: tuple[str, ...]
    """What torch calls the same tensors."""


@dataclass(frozen=True, slots=True)
class _OptimizerNames:
    parameters: tuple[int, ...]
    """Identities, group by group."""
    names: tuple[tuple[str, ...], ...]
    """What torch calls them, by group."""


_models: weakref.WeakKeyDictionary[Any, _ModelNames] = weakref.WeakKeyDictionary()
_optimizers: weakref.WeakKeyDictionary[Any, _OptimizerNames] = weakref.WeakKeyDictionary()


def by_closure(optimizer: Any) -> bool:
    """Whether `step` cannot be called without a closure, as LBFGS's: torch cannot make up such a one's state, and its
    lists grow from step to step, so it is saved as one value."""
    given = inspect.signature(optimizer.step).parameters.get("closure")
    return given is not None and given.default is inspect.Parameter.empty


def model_state(model: Any) -> dict[str, Any] | None:
    """The state of a model whose names are known; None when torch must be asked."""
    known = _models.get(model)
    if known is None:
        return None
    own = model.state_dict()
    return dict(zip(known.names, own.values(), strict=True)) if tuple(own) == known.keys else None


def learn_model(model: Any, answer: Mapping[str, Any]) -> None:
    """Remember torch's names, if its answer is the module's own state under other names."""
    own = model.state_dict()
    if len(own) == len(answer) and all(map(_same, own.values(), answer.values())):
        _models[model] = _ModelNames(tuple(own), tuple(answer))


def optimizer_state(optimizer: Any) -> dict[str, Any] | None:
    """The state of an optimizer whose names are known; None when torch must be asked."""
    known = _optimizers.get(optimizer)
    groups = optimizer.param_groups
    if known is None or tuple(id(one) for group in groups for one in group["params"]) != known.parameters:
        return None
    return _named(optimizer, known.names)


def learn_optimizer(optimizer: Any, answer: Mapping[str, Any]) -> None:
    """Remember torch's names, if its answer is what the shortcut would give."""
    groups = optimizer.param_groups
    names = tuple(tuple(group["params"]) for group in answer["param_groups"])
    counts = [len(group["params"]) for group in groups]
    if any(getattr(optimizer, hook, None) for hook in _HOOKS) or [len(one) for one in names] != counts:
        return
    made = _named(optimizer, names)
    if _equal(made["state"], answer["state"]) and all(map(_equal, made["param_groups"], answer["param_groups"])):
        _optimizers[optimizer] = _OptimizerNames(tuple(id(one) for g in groups for one in g["params"]), names)


def _named(optimizer: Any, names: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
    states, found, groups = optimizer.state, {}, []
    for group, own in zip(optimizer.param_groups, names, strict=True):
        groups.append({**group, "params": list(own)})
        for name, parameter in zip(own, group["params"], strict=True):
            if parameter in states:
                found[name] = states[parameter]
    return {"state": found, "param_groups": groups}


_COMPARABLE = (bool, int, float, complex, str, bytes)
"""What answers a comparison with yes or no; of all else torch is asked again."""


def _equal(first: Any, second: Any) -> bool:
    """Whether two nested answers hold the same tensors and the same values in the same places."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_equal(one, second[name]) for name, one in first.items())
    return _same(first, second)


def _same(first: Any, second: Any) -> bool:
    """Whether both are the same tensor, or equal values."""
    if first is second:
        return True
    first, second = getattr(first, "_local_tensor", first), getattr(second, "_local_tensor", second)
    if hasattr(first, "data_ptr") and hasattr(second, "data_ptr"):
        return bool(first.data_ptr() == second.data_ptr() and first.shape == second.shape)
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return isinstance(first, _COMPARABLE) and bool(first == second)
