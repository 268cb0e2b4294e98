"""Ways out of a membership: work that is stranded, terms without work, errors that are hidden."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from rota.client import (
    callbacks,
    commits,
    consumer,
    election,
    errors,
    member,
    running,
    signals,
    term,
    threads,
    topic_lookout,
    twin,
    worker_pool,
)
from rota.client.errors import CoordinatorError, LeadershipLost, MembershipLost
from rota.client.holding import Holding
from rota.client.stop_deadline import Step, StopDeadline
from rota.core.membership.standing import Standing
from tests.simulation.groups.planting import Plants
from tests.simulation.registry import Patch

PLANTS = Plants()
TOO_LONG_S = 400.0
"""Longer than the limit of virtual time."""
WAYS = "tests/client/test_ways_out.py::"
SYNC = "tests/client/test_sync_ways_out.py::"
COMMITS = "tests/client/test_commits_in_order.py::"
THREADS = "tests/client/test_threads.py::"


def stops_take_too_long(patch: Patch) -> None:
    former = StopDeadline.shorten
    patch(StopDeadline, "shorten", lambda self, _drain_s=TOO_LONG_S: former(self, TOO_LONG_S))


# --- to resign and to step aside -------------------------------------------------------------------


@PLANTS.named(
    "clients D1 C-01",
    WAYS + "test_a_body_may_resign_and_another_candidate_leads[resign]",
    fails_with="TimeoutError",
)
def resign_waits_for_its_own_body(patch: Patch) -> None:
    async def resign(self: Any, reason: str = "resigned", *, pause: float = 0.0) -> None:
        self.member._holding.is_leaving = True
        self.member._callbacks.add(self.member._holding.give_all_up)
        await self.member._callbacks.drain(StopDeadline(), Step.END)
        await self._come_back_after(self.member._begin_step_aside(reason), pause)

    patch(election.Election, "resign", resign)


@PLANTS.named("clients D1 C-22", SYNC + "test_a_term_may_be_resigned_in_its_own_block")
def a_sync_block_does_not_count_as_the_term_s_work(patch: Patch) -> None:
    class NotInside:
        def __init__(self, *_keys: int) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_error: object) -> None:
            pass

    patch(twin, "inside", NotInside)
    stops_take_too_long(patch)
    patch(sys.modules["tests.client.test_sync_ways_out"], "PATIENCE_S", 2.0)


@PLANTS.named(
    "clients D1 C-06",
    WAYS + "test_a_callback_may_end_the_membership_that_it_is_called_for[step_aside]",
    fails_with="TimeoutError",
)
def step_aside_waits_for_the_callback_that_calls_it(patch: Patch) -> None:
    async def step_aside(self: Any, reason: str) -> None:
        await self._begin_step_aside(reason)

    patch(member.Member, "step_aside", step_aside)
    stops_take_too_long(patch)


# --- run -------------------------------------------------------------------------------------------


@PLANTS.named(
    "clients D7 C-02",
    WAYS + "test_run_raises_another_elections_loss_and_resigns_its_own",
    fails_with="TimeoutError",
)
def another_election_s_loss_is_swallowed(patch: Patch) -> None:
    async def lead(self: Any, work: Any) -> Any:
        async for led in self.terms():
            try:
                async with led:
                    return await work(led)
            except LeadershipLost:
                pass
        raise LeadershipLost("the candidacy is over")

    patch(election.Election, "_lead", lead)


@PLANTS.named(
    "clients D7 C-07",
    WAYS + "test_to_return_is_to_resign_and_to_run_is_to_campaign",
    fails_with="TimeoutError",
)
def a_run_that_returns_does_not_resign(patch: Patch) -> None:
    async def end_run(self: Any, stopping: Any, campaigning: Any) -> None:
        stopping.cancel()
        campaigning.cancel()
        await asyncio.wait((stopping, campaigning))

    patch(election.Election, "_end_run", end_run)


@PLANTS.named(
    "mission D3, ux D1", WAYS + "test_a_pool_runs_inside_and_outside_of_its_block[True]", fails_with="TimeoutError"
)
def run_enters_the_block_again(patch: Patch) -> None:
    async def run(self: Any, **_options: Any) -> None:
        async with self:
            await asyncio.Event().wait()

    patch(worker_pool.WorkerPool, "run", run)


@PLANTS.named("ux D2 drain", WAYS + "test_a_pool_runs_inside_and_outside_of_its_block[False]")
def a_stop_does_not_drain(patch: Patch) -> None:
    patch(worker_pool.Shard, "stopping", property(lambda self: self._stopping))


@PLANTS.named("ux D2 SIGTERM", THREADS + "test_the_first_signal_drains_and_the_second_cancels[15]")
def no_run_handles_signals(patch: Patch) -> None:
    """A signal would end the process that runs the tests, so it is an exception here."""
    former, is_default = os.kill, signals._is_default

    def kill(pid: int, number: int) -> None:
        assert not is_default(signal.getsignal(number)), f"the process is ended by signal {number}"
        former(pid, number)

    patch(signals, "_is_default", lambda _handler: False)
    patch(os, "kill", kill)


@PLANTS.named("ux D11 Ctrl-C", THREADS + "test_the_first_signal_drains_and_the_second_cancels[2]")
def ctrl_c_is_not_handled_by_run(patch: Patch) -> None:
    no_run_handles_signals(patch)


@PLANTS.named("ux D2b", WAYS + "test_a_stop_lets_the_work_of_a_term_drain_and_leaves")
def a_program_that_is_ended_does_not_leave(patch: Patch) -> None:
    def leave(self: Any, **_options: Any) -> None:
        self._driver.react(self._machine.abandon())
        self._wake.set()

    patch(member.Member, "_leave", leave)


# --- shares and terms end --------------------------------------------------------------------------


@PLANTS.named(
    "aesthetics D0",
    WAYS + "test_a_pool_survives_an_outage_that_a_commit_meets",
    fails_with="CoordinatorUnreachable",
)
def only_a_lost_membership_is_forgiven(patch: Patch) -> None:
    async def run(self: Any, shard: Any, _place: Any, _former: Any) -> None:
        try:
            await self._work(shard)
        except Exception as error:
            if shard.is_held or not isinstance(error, MembershipLost):
                self.consumer._fail(error)
        finally:
            self._notify()

    def holds(self: Any) -> bool:
        """The commit gives up a moment before the loss is noticed."""
        current = self._holding.current
        return current is not None and bool(self._machine.holds(self._driver.now_ms() + 200))

    patch(worker_pool.WorkerPool, "_run", run)
    patch(commits.Commits, "_holds", property(holds))


@PLANTS.named(
    "clients D9 on_lost",
    COMMITS + "test_an_error_in_the_outcomes_function_ends_the_member",
)
def an_error_ends_a_member_without_on_lost(patch: Patch) -> None:
    def lose(self: Any, _reason: str) -> None:
        self.current = self.owned = None
        self.era += 1
        self._callbacks.interrupt()

    patch(Holding, "lose", lose)


@PLANTS.named(
    "clients D11 B-46b",
    WAYS + "test_the_bodys_exception_is_not_hidden_by_a_callbacks",
    fails_with="RuntimeError",
)
def a_callback_s_error_hides_that_of_the_body(patch: Patch) -> None:
    former = member.Member._end_block

    async def end_block(self: Any, error: BaseException | None, cancelled: Any) -> None:
        await former(self, None if self._failure is not None else error, cancelled)

    patch(member.Member, "_end_block", end_block)


@PLANTS.named(
    "clients D12 B-61d, clients §4 C-20",
    WAYS + "test_leaving_has_a_deadline_that_cancels_the_work",
    fails_with="TimeoutError",
)
def leaving_waits_for_on_revoked_without_an_end(patch: Patch) -> None:
    stops_take_too_long(patch)


@PLANTS.named("clients D12 B-28b", WAYS + "test_a_static_member_that_makes_no_progress_keeps_its_seat")
def a_static_member_that_withdraws_leaves(patch: Patch) -> None:
    def withdraw(self: Any, reason: str) -> None:
        self._holding.lose(reason)
        self._driver.react(self._machine.step_aside(self._now_ms(), reason))
        self._wake.set()

    patch(member.Member, "_withdraw", withdraw)


@PLANTS.named(
    "clients §2 B-43c", WAYS + "test_a_program_without_on_lost_is_notified_by_on_revoked", fails_with="TimeoutError"
)
def without_on_lost_nothing_is_called(patch: Patch) -> None:
    async def notify_lost(listeners: Any, share: Any, _unnotified: Any, *, deadline: float | None) -> None:
        await callbacks.notify(listeners.on_lost, share, deadline=deadline)

    from rota.client import consumer, holding

    for module in (callbacks, consumer, holding):
        patch(module, "notify_lost", notify_lost)


@PLANTS.named("clients §2 exit", WAYS + "test_an_exit_in_a_callback_leaves_the_group_first[on_assigned]")
def an_exit_of_the_program_does_not_leave(patch: Patch) -> None:
    def leave(self: Any, *, sends: bool) -> None:
        if isinstance(self._failure, SystemExit):
            self._machine.abandon()
            self._wake.set()
        else:
            former(self, sends=sends)

    former = member.Member._leave
    patch(member.Member, "_leave", leave)


# --- threads and forks -----------------------------------------------------------------------------


@PLANTS.named(
    "clients D12 C-13",
    SYNC + "test_an_exit_in_a_thread_of_the_sdk_leaves_and_ends[callback]",
)
def an_exit_in_a_callback_ends_the_sdk_s_thread(patch: Patch) -> None:
    async def raised(coroutine: Any) -> Any:
        return callbacks_of(await coroutine)

    from rota.client.tasks import Contained as callbacks_of

    patch(twin, "contained", raised)
    patch(threads, "contained", raised)


@PLANTS.named("clients D12 C-12", THREADS + "test_a_forked_child_gets_a_clear_error")
def a_forked_child_waits_for_ever(patch: Patch) -> None:
    """So that this one does not, it ends."""

    def was_forked(self: Any) -> bool:
        if os.getpid() != self._process_id:
            os._exit(9)
        return False

    patch(threads.LoopThread, "was_forked", property(was_forked))


@PLANTS.named(
    "clients D6 C-03",
    THREADS + "test_work_in_a_thread_asks_whether_it_still_holds_its_shard",
    fails_with="RuntimeError",
)
def only_the_loop_s_own_thread_may_ask(patch: Patch) -> None:
    from rota.client.driver import Driver

    def holds(self: Any) -> bool:
        return bool(self._machine.holds(int(asyncio.get_running_loop().time() * 1000)))

    patch(Driver, "holds", holds)


@PLANTS.named(
    "clients D6 C-04", THREADS + "test_threads_may_ask_a_term_and_have_the_candidate_stop", fails_with="AttributeError"
)
def stopping_is_an_event_of_asyncio_alone(patch: Patch) -> None:
    patch(term, "FinalSignal", asyncio.Event)
    patch(worker_pool, "FinalSignal", asyncio.Event)


LOSSES = "tests/client/test_wrapped_losses.py::"
POOLS = "tests/client/test_pool_failures.py::"


@PLANTS.named(
    "seams D1",
    LOSSES + "test_pauses_quarantine_no_healthy_shard",
    fails_with="MembershipLost",
)
def losses_in_groups_are_failures(patch: Patch) -> None:
    def without_losses(error: BaseException) -> BaseException | None:
        return None if isinstance(error, CoordinatorError) else error

    for module in (errors, term, worker_pool):
        patch(module, "without_losses", without_losses)


@PLANTS.named("seams D3", POOLS + "test_a_failing_shard_costs_its_siblings_no_progress[False]")
def a_failing_shard_ends_all_others_at_once(patch: Patch) -> None:
    def fail(self: Any, error: BaseException, unit: str) -> None:
        former(self, error, unit)
        self._holding.lose("its work raised")

    former = member.Member._fail_in_order
    patch(member.Member, "_fail_in_order", fail)


@PLANTS.named("seams D4", POOLS + "test_a_retry_leaves_the_other_shards_at_work", fails_with="TimeoutError")
def a_shard_is_not_tried_again(patch: Patch) -> None:
    former = worker_pool.WorkerPool._try

    async def try_once(self: Any, shard: Any, place: Any, _retry: Any) -> bool:
        return await former(self, shard, place, None)

    patch(worker_pool.WorkerPool, "_try", try_once)


@PLANTS.named("seams D6", POOLS + "test_a_shard_that_hangs_is_started_again_by_itself", fails_with="TimeoutError")
def only_the_whole_pool_is_watched(patch: Patch) -> None:
    patch(consumer.Consumer, "_look_for_silent_shards", lambda *_: None)


@PLANTS.named(
    "seams W4", "tests/client/test_cancelled_waits.py::test_a_wait_cancelled_at_any_step_leaves_nothing[lock-by_calls]"
)
def a_block_outlives_its_cancelled_start(patch: Patch) -> None:
    async def leave_alone(_task: Any) -> None:
        """The task goes on."""

    patch(running, "_cancelled", leave_alone)


@PLANTS.named(
    "seams m08", "tests/client/test_tokens_of_successors.py::test_a_static_candidates_successor_has_a_higher_token"
)
def a_static_successor_has_its_predecessors_token(patch: Patch) -> None:
    patch(Standing, "take_token", lambda *_: None)


@PLANTS.named("seams m11", LOSSES + "test_a_commit_rejected_in_a_drain_ends_no_pool[False]")
def a_commit_rejected_while_its_shard_is_revoked_is_a_failure(patch: Patch) -> None:
    async def failure_in(_self: Any, shard: Any, error: BaseException) -> BaseException | None:
        return error if shard.is_held else errors.without_losses(error)

    patch(worker_pool.WorkerPool, "_failure_in", failure_in)


@PLANTS.named(
    "seams m09", "tests/client/test_consumer.py::test_a_leader_that_could_not_compare_topics_tries_again_soon"
)
def a_leader_waits_for_a_whole_interval(patch: Patch) -> None:
    patch(topic_lookout, "AGAIN_S", 3_600.0)
