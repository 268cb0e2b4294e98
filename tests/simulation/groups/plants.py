"""Defects that the SDK had, planted again: each is a context manager that patches it while it is open.

A row names the rule that the liveness check must report, and seeds whose worlds are in order without the plant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from rota.client import (
    commits,
    connect_worker,
    consumer,
    consumer_protocol,
    election,
    member,
    topic_lookout,
)
from rota.client import permits as client_permits
from rota.client.callbacks import notify
from rota.client.errors import LeadershipLost
from rota.client.holding import Holding
from rota.client.transports import http_answers
from rota.client.worker_pool import WorkerPool
from rota.core.assignors import GroupAssignment, own, placement, registry
from rota.core.group import assignment, join, maintenance, rebalance, shard, state, succession, sync
from rota.core.membership import backoff, machine
from rota.core.membership.standing import Standing
from rota.core.types import leader, permits
from rota.core.types.worker import decode_state, encode_state
from rota.protocol.errors import ErrorCode
from rota.protocol.wire.problems import Problem, decode_problem
from tests.simulation.registry import Patch, Patching, Planted, while_planted


@dataclass(frozen=True, slots=True)
class Plant:
    """One defect, where it was found, and what finds it now."""

    finding: str
    rule: str
    seeds: tuple[int, ...]
    planted: Planted


PLANTS: dict[str, Plant] = {}


def plant(finding: str, rule: str, *seeds: int) -> Callable[[Patching], None]:
    """Register a function that gets a way to patch an attribute for as long as the plant is in."""

    def register(patching: Patching) -> None:
        PLANTS[patching.__name__] = Plant(finding, rule, seeds, while_planted(patching))

    return register


# --- ways out -------------------------------------------------------------------------------------


@plant("clients D1 C-06", "L7", 0)
def step_aside_waits_for_the_callback_that_calls_it(patch: Patch) -> None:
    async def step_aside(self: Any, reason: str) -> None:
        await self._begin_step_aside(reason)

    patch(member.Member, "step_aside", step_aside)


@plant("clients D7 C-02", "idle-term", 87)
def another_elections_loss_is_swallowed(patch: Patch) -> None:
    async def lead(self: Any, work: Any) -> Any:
        async for term in self.terms():
            try:
                async with term:
                    return await work(term)
            except LeadershipLost:
                pass
        raise LeadershipLost("the candidacy is over")

    patch(election.Election, "_lead", lead)


@plant("clients D7 C-07", "idle-term", 127)
def a_run_that_returns_does_not_resign(patch: Patch) -> None:
    async def end_run(self: Any, stopping: Any, campaigning: Any) -> None:
        stopping.cancel()
        campaigning.cancel()
        await asyncio.wait((stopping, campaigning))

    patch(election.Election, "_end_run", end_run)


@plant("mission D3, ux D1", "ended", 24)
def run_enters_the_block_again(patch: Patch) -> None:
    async def run(self: Any, **_options: Any) -> None:
        async with self:
            await asyncio.Event().wait()

    patch(WorkerPool, "run", run)


@plant("clients D9 on_lost", "not-ended", 16)
def an_error_ends_a_member_without_on_lost(patch: Patch) -> None:
    def lose(self: Any, reason: str) -> None:
        self.current = self.owned = None
        self.era += 1
        self._callbacks.interrupt(_nothing)

    patch(Holding, "lose", lose)


# --- the wire -------------------------------------------------------------------------------------


@plant("clients D3 http", "ended", 1)
def a_foreign_page_is_an_invalid_request(patch: Patch) -> None:
    def problem_in(answer: Any, address: str) -> Problem:
        found = decode_problem(answer.status, answer.document or {}, "")
        return found or Problem(ErrorCode.INVALID_REQUEST, f"HTTP status {answer.status}")

    patch(http_answers, "problem_in", problem_in)


@plant("clients D4 C-18", "ended", 5)
def texts_are_sent_whole(patch: Patch) -> None:
    patch(machine, "shortened", lambda text, _most=0: text)


@plant("clients D12 B-28b", "static-leaves", 14)
def a_static_member_that_withdraws_leaves(patch: Patch) -> None:
    def withdraw(self: Any, reason: str) -> None:
        self._holding.lose(reason)
        self._driver.react(self._machine.step_aside(self._now_ms(), reason))
        self._wake.set()

    patch(member.Member, "_withdraw", withdraw)


# --- commits --------------------------------------------------------------------------------------


@plant("clients D5 B-51b", "offset-back", 60)
def each_commit_is_a_task_of_its_own(patch: Patch) -> None:
    def add(self: Any, items: Any) -> Any:
        outcome = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(commits.retrieved)
        entry = commits._Entry(items, self._role.concerned(self._holding.owned, items), self._holding.era, outcome)
        self._tasks.create(self._commit([entry]))
        return outcome

    patch(commits.Commits, "add", add)


@plant("clients D5 B-61b", "left-too-soon", 69)
def leaving_does_not_wait_for_commits(patch: Patch) -> None:
    async def at_once(*_arguments: Any) -> None:
        """Nothing is waited for."""

    patch(consumer.Consumer, "_before_leaving", at_once)
    patch(commits.Commits, "flush", at_once)


# --- topics and strategies ------------------------------------------------------------------------


@plant("clients D2 range", "L7", 84)
def a_returning_leader_follows_no_topics(patch: Patch) -> None:
    async def read_assignment(_self: Any) -> None:
        """It knows only what it assigned itself."""

    patch(topic_lookout.TopicLookout, "_read_assignment", read_assignment)


# --- what no finding had, but a check of this kind must find ----------------------------------------


@plant("the check", "two-holders", 3)
def on_revoked_is_not_waited_for(patch: Patch) -> None:
    async def give_up(self: Any, generation_id: int, removed: Any) -> None:
        listener, deadline = self._listeners.on_revoked, self._revoke_by()
        self.tasks = [*getattr(self, "tasks", ()), asyncio.create_task(_late(listener, removed, deadline))]

    patch(Holding, "_give_up", give_up)


@plant("the check", "not-left", 0)
def closing_sends_no_leave(patch: Patch) -> None:
    def leave(self: Any, **_options: Any) -> None:
        self._driver.react(self._machine.abandon())
        self._wake.set()

    patch(member.Member, "_leave", leave)


@plant("the check", "L7", 5)
def a_rebalance_is_not_joined(patch: Patch) -> None:
    former = Standing.rebalance

    def rebalance(self: Any, now_ms: int) -> Any:
        return [] if self.generation_id % 3 == 2 else former(self, now_ms)

    patch(Standing, "rebalance", rebalance)


@plant("the check", "busy", 2)
def failures_are_repeated_at_once(patch: Patch) -> None:
    patch(backoff.Pace, "pause", lambda self, now_ms, *_arguments: self.at_once(now_ms))


# --- strategies of the user's own -----------------------------------------------------------------


@plant("the check", "L7", 11)
def user_data_of_a_subscription_is_dropped(patch: Patch) -> None:
    patch(consumer_protocol.TopicRole, "_user_data", lambda *_arguments: None)


@plant("the check", "ended", 11)
def user_data_of_an_assignment_is_dropped(patch: Patch) -> None:
    former = own.own_assignment
    patch(registry, "own_assignment", lambda *arguments: GroupAssignment(former(*arguments).shares))


@plant("the check", "two-holders", 321)
def nothing_is_withheld_for_an_own_strategy(patch: Patch) -> None:
    patch(own, "withheld", lambda _counts, _members, shares: shares)


# --- permits --------------------------------------------------------------------------------------


@plant("the check", "token-repeated", 37)
def a_permits_token_does_not_rise(patch: Patch) -> None:
    former = permits.encode_share
    patch(
        permits,
        "encode_share",
        lambda share: former(structs.replace(share, token=7) if share.permit is not None else share),
    )


@plant("the check", "too-many-holders", 101)
def a_permit_more_is_granted(patch: Patch) -> None:
    former = permits.decode_wish
    patch(permits, "decode_wish", lambda metadata: permits.Wish(former(metadata).permits + 1))


@plant("the check", "two-holders", 101)
def permits_are_granted_anew_in_each_generation(patch: Patch) -> None:
    def grant_last_first(generation: Any, _permits: int) -> dict[str, Any]:
        last = generation.members[-1]
        return {last.member_id: permits.PermitShare(0, last.fencing_token)}

    patch(permits, "_kept", grant_last_first)


@plant("the check", "L7", 70)
def a_permit_that_is_given_back_is_not_granted_again(patch: Patch) -> None:
    former = permits._free
    patch(permits, "_free", lambda number, taken: iter(()) if taken else former(number, taken))


@plant("the check", "fenced", 183)
def a_lost_permit_goes_on(patch: Patch) -> None:
    patch(client_permits.Permit, "is_valid", property(lambda self: True))
    patch(client_permits.Permit, "_end", lambda self, reason: None)


async def _nothing() -> None:
    """Takes the place of a callback."""


async def _late(listener: Any, removed: Any, deadline: Any) -> None:
    await asyncio.sleep(0.3)
    await notify(listener, removed, deadline=deadline)


# --- elections by priority --------------------------------------------------------------------------


@plant("the check", "works-on", 55)
def a_leader_joins_before_its_work_has_ended(patch: Patch) -> None:
    async def on_revoked(self: Any, _removed: Any) -> None:
        self._end("the leadership was handed over")

    patch(election.Election, "_on_revoked", on_revoked)


@plant("the check", "works-on", 5)
def a_leader_says_that_it_does_not_work(patch: Patch) -> None:
    candidate_protocols = election.CandidateRole.protocols

    def protocols(self: Any, _held: Any, generation_id: int) -> Any:
        return candidate_protocols(self, (), generation_id)

    patch(election.CandidateRole, "protocols", protocols)


@plant("the check", "two-holders", 127)
def the_best_candidate_leads_at_once(patch: Patch) -> None:
    patch(leader, "holding", lambda _metadata: False)


@plant("the check", "L7", 201)
def a_leader_is_never_asked_to_hand_over(patch: Patch) -> None:
    patch(succession, "due_preemption", lambda *_: None)


@plant("the check", "S23", 55)
def a_candidate_need_not_wait(patch: Patch) -> None:
    due_preemption = succession.due_preemption

    def at_once(group: Any, now_ms: int | None = None) -> Any:
        due = due_preemption(group, None if now_ms is None else now_ms + 60_000)
        return None if due is None else replace(due, at_ms=0)

    patch(succession, "due_preemption", at_once)
    patch(rebalance, "due_preemption", at_once)


@plant("the check", "two-holders", 74)
def a_leader_steps_down_before_its_work_has_ended(patch: Patch) -> None:
    patch(rebalance, "can_hand_over", lambda *_: False)


# --- freezes ----------------------------------------------------------------------------------------


@plant("the check", "S24", 27)
def a_newcomer_joins_a_frozen_group(patch: Patch) -> None:
    patch(shard, "refuse_newcomer", lambda *_: None)


@plant("the check", "S24", 11)
def changes_of_topics_do_not_wait(patch: Patch) -> None:
    patch(join, "hold_back", lambda *_: False)
    patch(sync, "hold_back", lambda *_: False)


@plant("the check", "L7", 12)
def a_freeze_does_not_end(patch: Patch) -> None:
    patch(state.Group, "is_frozen", lambda self, _now_ms: self.frozen_until_ms is not None)


# --- eager workers ----------------------------------------------------------------------------------


@plant("the check", "two-holders", 0)
def an_eager_worker_joins_with_its_work_and_does_not_say_so(patch: Patch) -> None:
    def protocols(self: Any, held: Any, generation_id: int) -> Any:
        return said(self, None if self.chosen == connect_worker.EAGER else held, generation_id)

    said = connect_worker.WorkRole.protocols
    patch(connect_worker.WorkRole, "protocols", protocols)
    patch(connect_worker.WorkRole, "is_cooperative", property(lambda _self: True))


@plant("the check", "two-holders", 161)
def an_eager_leader_gives_out_what_still_runs(patch: Patch) -> None:
    async def assign_all(self: Any, generation: Any) -> Any:
        if generation.protocol_name == connect_worker.EAGER:
            states = [replace(decode_state(member.metadata), running=()) for member in generation.members]
            members = zip(generation.members, states, strict=True)
            without = tuple(structs.replace(member, metadata=encode_state(state)) for member, state in members)
            generation = replace(generation, members=without)
        return await assign(self, generation)

    assign = connect_worker.WorkRole.assign
    patch(connect_worker.WorkRole, "assign", assign_all)


# --- quarantine -------------------------------------------------------------------------------------


@plant("the check", "S26", 0)
def units_in_quarantine_are_assigned(patch: Patch) -> None:
    for module in (assignment, sync):
        patch(module, "leave_out", lambda _group, assignments: assignments)


@plant("the check", "S26", 24)
def more_units_than_may_be_are_quarantined(patch: Patch) -> None:
    quarantine_due = assignment._quarantine_due

    def without_limit(result: Any, group: Any, last: Any) -> None:
        rule = group.quarantine
        group.quarantine = replace(rule, max_units=100)
        quarantine_due(result, group, last)
        group.quarantine = replace(group.quarantine, max_units=rule.max_units)

    patch(assignment, "_quarantine_due", without_limit)


@plant("the check", "L7", 11)
def a_released_unit_gets_no_holder(patch: Patch) -> None:
    patch(maintenance, "start_rebalance", lambda *_: None)


@plant("the check", "two-active", 460)
def a_standby_does_not_wait_for_the_active_one(patch: Patch) -> None:
    original = placement.active_copies
    patch(registry, "active_copies", lambda members, shares, **_: original(members, shares))


@plant("the check", "two-active", 86)
def members_do_not_say_which_copies_are_active(patch: Patch) -> None:
    original = placement.active_copies

    def without_claims(members: Any, shares: Any, **how: Any) -> Any:
        return original([replace(each, active_partitions=()) for each in members], shares, **how)

    patch(registry, "active_copies", without_claims)
