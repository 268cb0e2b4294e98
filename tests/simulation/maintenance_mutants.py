"""Planted bugs in elections by priority, freezes, and permissions to leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rota.core.group import join, maintenance, rebalance, shard, state, succession, sync
from rota.core.types import leader
from tests.simulation import invariants
from tests.simulation.registry import Patch, mutant

# --- elections by priority --------------------------------------------------------------------------------


@mutant
def a_leader_at_work_is_displaced(patch: Patch) -> None:
    """S22: the best candidate leads the next generation, while the leader still works."""
    patch(leader, "holding", lambda _metadata: False)


@mutant
def the_earliest_candidate_leads(patch: Patch) -> None:
    """S22: neither the priority nor the request to hand over counts in the join phase."""
    patch(succession, "_elected", lambda *_: "")


@mutant
def a_leader_is_never_asked_to_hand_over(patch: Patch) -> None:
    """L12: a candidate outranks the leader for ever."""
    for module in (succession, rebalance, invariants):
        patch(module, "due_preemption", lambda *_: None)


@mutant
def a_candidate_need_not_wait(patch: Patch) -> None:
    """S23: a leader is asked to hand over as soon as a candidate outranks it."""
    original = succession.due_preemption

    def at_once(group: Any, now_ms: int | None = None) -> Any:
        due = original(group, None if now_ms is None else now_ms + 60_000)
        return None if due is None else replace(due, at_ms=0)

    for module in (succession, rebalance):
        patch(module, "due_preemption", at_once)


# --- freezes ------------------------------------------------------------------------------------------------


@mutant
def a_newcomer_joins_a_frozen_group(patch: Patch) -> None:
    """S24: a newcomer begins a rebalance of a group that is frozen."""
    patch(shard, "refuse_newcomer", lambda *_: None)


@mutant
def changes_of_topics_do_not_wait(patch: Patch) -> None:
    """S24: a leader that has found other topics begins a rebalance of a group that is frozen."""
    patch(join, "hold_back", lambda *_: False)
    patch(sync, "hold_back", lambda *_: False)


@mutant
def a_frozen_group_preempts_its_leader(patch: Patch) -> None:
    """S24: a candidate of a higher priority does not wait for the end of a freeze."""
    patch(succession, "_unfrozen", lambda _group, at_ms: at_ms)


@mutant
def a_departure_waits_for_the_end_of_a_freeze(patch: Patch) -> None:
    """S24: the work of a member that has gone lies still while the group is frozen."""
    original = rebalance.replace_departed

    def replace_departed(result: Any, group: Any, *arguments: Any) -> None:
        if not group.is_frozen(result.now_ms):
            original(result, group, *arguments)

    patch(rebalance, "replace_departed", replace_departed)


@mutant
def a_freeze_does_not_end(patch: Patch) -> None:
    """L7: newcomers wait for ever."""
    patch(state.Group, "is_frozen", lambda self, _now_ms: self.frozen_until_ms is not None)


@mutant
def held_back_changes_are_forgotten(patch: Patch) -> None:
    """L7: a leader that was held back is not called for again at the end of the freeze."""
    original = maintenance._thaw

    def thaw(result: Any, group: Any) -> None:
        group.held_back = None
        original(result, group)

    patch(maintenance, "_thaw", thaw)


@mutant
def a_freeze_outlives_its_time_at_a_new_owner(patch: Patch) -> None:
    """L7: a new owner sets no timer for the end of a freeze."""
    patch(shard, "watch_freeze", lambda *_, **_named: None)


# --- permissions to leave -------------------------------------------------------------------------------------


@mutant
def a_member_may_leave_at_any_time(patch: Patch) -> None:
    """S25: permissions are granted while the group rebalances, and while it is frozen."""
    patch(maintenance, "_drain_refusal", lambda *_: "")


@mutant
def permissions_are_not_counted(patch: Patch) -> None:
    """S25: more members leave at once than the evictor allows."""
    original = maintenance._drain_refusal
    patch(maintenance, "_drain_refusal", lambda group, _others, *rest: original(group, (), *rest))
