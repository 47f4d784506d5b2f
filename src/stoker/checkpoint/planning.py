"""Before a copy: do all ranks save the same step, is there room, and who writes what. One short exchange of all ranks.

The plan and the staging memory stay as long as names, shapes and types do, so that this is two messages a save; what
they cost is part of the blocked time. A rank that cannot save (busy, full) makes all skip, for its part would be
missing.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoker.checkpoint.names import Attempt
from stoker.checkpoint.peers import Peers
from stoker.errors import CheckpointError, reason_of
from stoker.units import format_bytes

Cannot = Callable[[int], str | None]
"""Why this rank cannot save so many bytes now; None when it can. May wait."""


def torch_part() -> Any:
    """The file that copies tensors: imported when something is saved, so that `import stoker` stays without torch."""
    return importlib.import_module("stoker.checkpoint.tensors")


def kinds_part() -> Any:
    """The file that says what can be saved: imported when something is saved."""
    return importlib.import_module("stoker.checkpoint.kinds")


def load_part() -> Any:
    """The file that loads tensors: imported when something is resumed."""
    return importlib.import_module("stoker.checkpoint.load")


class Planning:
    """A rank's plan and staging memory, kept in step with its peers'."""

    def __init__(self, peers: Peers, first_number: int, cannot: Cannot, *, timeout_s: float, patience_s: float) -> None:
        self._peers, self._number, self._cannot = peers, first_number, cannot
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._rounds = 0
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self.plan: Any = None
        self.staging: Any = None

    def turn(self) -> None:
        """A call of all ranks begins: counted before anything of it can fail on one of them, or that rank would answer
        the questions of the call before from then on."""
        self._rounds += 1

    def agree(self, step: int, planner: Any) -> tuple[Attempt | None, bool, str]:
        """The attempt's name, the same on every rank, and whether to `renew`; or None and why to skip."""
        signature = kinds_part().signature_of(planner)
        changed = self.plan is None or self.plan.signature != signature
        mine = (step, changed, self._cannot(0 if changed else self.plan.layout.nbytes))
        topic = f"agree/{self._rounds}"
        verdict: tuple[Attempt | None, bool, str] = (None, False, "")
        try:
            hellos = self._peers.gather(topic, mine, self._patience_s)
            if self._peers.rank == 0:
                verdict = self._judge(hellos)
        except CheckpointError as error:
            verdict = (None, False, error.message)
        attempt, renew, reason = self._peers.spread(topic, verdict, 2 * self._patience_s)
        return attempt, renew, reason

    def renew(self, planner: Any) -> None:
        """Make the plan anew, and its staging memory. A call of all ranks that agreed on it."""
        self._replan(planner, kinds_part().signature_of(planner), f"agree/{self._rounds}")

    def prepare(self, planner: Any) -> None:
        """Plan and touch the staging memory now, so that the first save is as quick as any. A call of all ranks."""
        self.turn()
        signature = kinds_part().signature_of(planner)
        if self._peers.world_size > 1 or self.plan is None or self.plan.signature != signature:
            self._replan(planner, signature, f"prepare/{self._rounds}")

    def _judge(self, hellos: Sequence[tuple[int, bool, str | None]]) -> tuple[Attempt | None, bool, str]:
        """At rank 0: go on or skip, and whether to plan anew."""
        steps = sorted({step for step, _, _ in hellos})
        if len(steps) > 1:
            return None, False, f"the ranks are at different steps: {steps}"
        reason = next((why for _, _, why in hellos if why is not None), None)
        if reason is not None:
            return None, False, reason
        attempt = Attempt.new(steps[0], self._number)
        self._number += 1
        return attempt, any(changed for _, changed, _ in hellos), ""

    def _replan(self, planner: Any, signature: tuple[object, ...], topic: str) -> None:
        """Share out anew which rank writes what, and make staging memory of that size."""
        tensors = torch_part()
        offers = self._peers.gather(f"{topic}/plan", planner.create_local_plan(), self._timeout_s)
        plans = tensors.global_plan(planner, offers) if self._peers.rank == 0 else []
        plan = self._peers.spread(f"{topic}/plan", plans, 2 * self._timeout_s)[self._peers.rank]
        self.close()
        plan = replace(plan, signature=signature)
        try:
            self.staging = tensors.Staging(plan, pin=tensors.any_on_gpu(planner))
        except OSError as error:
            raise CheckpointError(
                f"there is no memory to copy the state to ({format_bytes(plan.layout.nbytes)}): {reason_of(error)}",
                "see `ulimit -n` and what memory this job may have",
            ) from error
        self.plan = plan  # last: without staging memory there is none, and the next save plans anew

    def fill(self, planner: Any, state: Mapping[str, Any], copied: Callable[[int], None]) -> None:
        """Copy the state. For what still runs then on a GPU its optimizers wait, even when nobody tells them to."""
        guarded = torch_part().guarded_by_optimizers(state) if self.staging.pinned else frozenset()
        self.staging.fill(planner, guarded, copied)
        for value in state.values():
            if hasattr(value, "register_step_pre_hook") and value not in self._hooked:
                self._hooked.add(value)
                value.register_step_pre_hook(functools.partial(_before_step, weakref.ref(self)))

    def guard(self) -> None:
        """Let what comes next on this GPU wait until the copies of the last save are done."""
        if self.staging is not None:
            self.staging.guard()

    def close(self) -> None:
        """Give the staging memory back."""
        if self.staging is not None:
            self.staging.close()
            self.staging = None
        self.plan = None


def _before_step(owner: weakref.ref[Planning], *arguments: object) -> None:
    """An optimizer's hook, which must not keep a Checkpointer's staging memory alive."""
    planning = owner()
    if planning is not None:
        planning.guard()
