"""Defects of the runtime, planted again in the production code: each is a context manager that patches it while open.

A row names the finding that it is from, the rules of which one must be reported, and a seed that reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rota.protocol.errors import ErrorCode
from rota.runtime import routing
from rota.runtime.calls import Call
from rota.runtime.committer import Committer
from rota.runtime.host import ShardHost
from rota.runtime.ownership import Ownership
from rota.runtime.ports import Answer, StoreUnavailable

Patch = Callable[[Any, str, Any], None]


@dataclass(frozen=True, slots=True)
class Plant:
    """One defect, where it was found, and what finds it now."""

    finding: str
    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    planted: Callable[[], AbstractContextManager[None]]


PLANTS: dict[str, Plant] = {}
OPEN_PLANTS: dict[str, Plant] = {}
"""Those that no seed has been found for yet, of a hundred or more: this list may only become shorter."""


def plant(finding: str, rules: str, *seeds: int) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a function that gets a way to patch an attribute for as long as the plant is in."""

    def register(patching: Callable[[Patch], None]) -> Callable[[Patch], None]:
        @contextmanager
        def planted() -> Iterator[None]:
            with ExitStack() as stack:

                def patch(target: Any, name: str, replacement: Any) -> None:
                    stack.callback(setattr, target, name, getattr(target, name))
                    setattr(target, name, replacement)

                patching(patch)
                yield

        table = PLANTS if seeds else OPEN_PLANTS
        table[patching.__name__] = Plant(finding, tuple(rules.split()), seeds, planted)
        return patching

    return register


# --- the order of commit and answer -----------------------------------------------------------------


@plant("aesthetics D1", "D1", 0, 1)
def every_reply_is_released_at_once(patch: Patch) -> None:
    former = ShardHost._take

    def take(self: Any, result: Any) -> None:
        if result is not None:
            replies, result.replies = result.replies, []
            former(self, result)
            self._release(replies, self._seq)

    patch(ShardHost, "_take", take)


@plant("aesthetics D1", "S15", 0, 4, 36)
def the_lease_never_ends(patch: Patch) -> None:
    patch(ShardHost, "may_answer", lambda self: not self.dropped)


@plant("aesthetics D1", "D1 S15", 0, 1)
def both_of_these(patch: Patch) -> None:
    every_reply_is_released_at_once(patch)
    the_lease_never_ends(patch)


@plant("aesthetics D2", "D1", 1, 2)
def a_later_transaction_is_released_with_the_first(patch: Patch) -> None:
    former = ShardHost.committed

    def committed(self: Any, batch: Any) -> None:
        former(self, batch)
        while self._held:
            held = self._held.popleft()
            self._set_timers(held.timers)
            self._release(held.replies, held.seq)

    patch(ShardHost, "committed", committed)


@plant("aesthetics D2, faults R2", "D1", 1, 2)
def a_read_is_answered_from_what_is_not_durable(patch: Patch) -> None:
    former = ShardHost.submit

    def submit(self: Any, request: Any) -> Any:
        seq, outcome = self._seq, former(self, request)
        if isinstance(outcome, Call) and self._seq == seq and self._held and not self.dropped:
            mine = [reply for number, reply in self._held[-1].replies if number == outcome.number]
            if mine:
                self._calls.pop(outcome.number, None)
                return Answer(mine[0], seq, self.claim.epoch)
        return outcome

    patch(ShardHost, "submit", submit)


@plant("faults R1", "D1", 1, 2)
def a_reply_without_records_of_its_own_leaves_at_once(patch: Patch) -> None:
    former = ShardHost._take

    def take(self: Any, result: Any) -> None:
        if result is not None and not result.records:
            replies, result.replies = result.replies, []
            self._release(replies, self._seq)
        former(self, result)

    patch(ShardHost, "_take", take)


@plant("aesthetics D2", "D3")
def only_the_first_shard_of_an_unknown_commit_is_given_up(patch: Patch) -> None:
    _patch_commit(patch, lambda hosts: hosts[:1])


@plant("faults R5", "D3", 1, 4)
def an_unknown_outcome_keeps_the_shard(patch: Patch) -> None:
    _patch_commit(patch, lambda _hosts: [])


def _patch_commit(patch: Patch, given_up: Callable[[list[Any]], list[Any]]) -> None:
    former = Committer._commit

    async def commit(self: Any, batches: Any) -> None:
        before = self._give_up
        doomed = given_up(list(batches))

        def give_up(host: Any, reason: str) -> None:
            if host in doomed or "unknown outcome" not in reason:
                before(host, reason)

        self._give_up = give_up
        try:
            await former(self, batches)
        finally:
            self._give_up = before

    patch(Committer, "_commit", commit)


# --- leases -----------------------------------------------------------------------------------------


@plant("aesthetics D2, faults R8", "S15")
def a_claimed_lease_counts_from_the_answer(patch: Patch) -> None:
    former = Ownership._load

    async def load(self: Any, claims: Any, _lease_until_ms: int) -> None:
        await former(self, claims, self._clock.monotonic_ms() + self._lease_ms)

    patch(Ownership, "_load", load)


@plant("faults R3", "S15")
def a_renewed_lease_counts_from_the_answer(patch: Patch) -> None:
    async def renew(self: Any) -> None:
        hosts = dict(self.hosts)
        if not hosts:
            return
        self._renewed_ms = self._clock.monotonic_ms()
        claims = [host.claim for host in hosts.values()]
        kept = set(await self._store.renew(claims, self.replica.replica_id, self._lease_ms))
        for shard_id, host in hosts.items():
            if shard_id not in kept:
                self.give_up(host, "the lease went to somebody else")
            elif not host.may_answer():
                self.give_up(host, "the lease had run out before it was renewed")
            else:
                host.lease_until_ms = self._clock.monotonic_ms() + self._lease_ms

    patch(Ownership, "_renew", renew)


@plant("aesthetics D2", "S15", 4, 39)
def a_renewal_counts_from_the_answer_and_never_gives_up(patch: Patch) -> None:
    async def renew(self: Any) -> None:
        hosts = dict(self.hosts)
        if hosts:
            self._renewed_ms = self._clock.monotonic_ms()
            claims = [host.claim for host in hosts.values()]
            await self._store.renew(claims, self.replica.replica_id, self._lease_ms)
            for host in hosts.values():
                host.lease_until_ms = self._clock.monotonic_ms() + self._lease_ms

    patch(Ownership, "_renew", renew)


@plant("faults R4", "L1 L2 L6 L7")
def a_lease_that_had_run_out_is_kept(patch: Patch) -> None:
    former = Ownership.give_up

    def give_up(self: Any, host: Any, reason: str) -> None:
        if reason == "the lease had run out before it was renewed":
            host.lease_until_ms = self._renewed_ms + self._lease_ms
        else:
            former(self, host, reason)

    patch(Ownership, "give_up", give_up)


@plant("aesthetics D2", "S11 S15 L7 crash", 4, 8)
def a_stale_renewal_reinstalls(patch: Patch) -> None:
    former = Ownership._renew

    async def renew(self: Any) -> None:
        hosts, sent_ms = dict(self.hosts), self._clock.monotonic_ms()
        await former(self)
        for shard_id, host in hosts.items():
            if host.dropped and shard_id not in self.hosts:
                host.dropped, host.lease_until_ms = False, sent_ms + self._lease_ms
                self.hosts[shard_id] = host

    patch(Ownership, "_renew", renew)


@plant("aesthetics D2, faults R6", "S15", 36, 39)
def replies_leave_after_the_lease(patch: Patch) -> None:
    def release(self: Any, replies: Any, seq: int) -> None:
        for number, reply in replies:
            call = self._calls.pop(number, None)
            if call is not None:
                call.finish(Answer(reply, seq, self.claim.epoch))

    patch(ShardHost, "_release", release)


# --- hand-over and forwarding -------------------------------------------------------------------------


@plant("aesthetics D2", "L10", 0, 1)
def a_hand_over_does_not_flush(patch: Patch) -> None:
    async def flush(_self: Any) -> None:
        """Nothing is waited for."""

    patch(Ownership, "flush", flush)


@plant("faults R7", "S13")
def decided_calls_are_told_to_go_elsewhere(patch: Patch) -> None:
    former = ShardHost.drop

    def drop(self: Any, reason: str, code: Any = ErrorCode.COORDINATOR_NOT_AVAILABLE, **said: bool) -> None:
        moves = "moves to another replica" in reason
        former(self, reason, ErrorCode.NOT_COORDINATOR if moves else code, **said)

    patch(ShardHost, "drop", drop)


@plant("the net", "S13 S9", 9, 40)
def a_write_of_unknown_outcome_counts_as_undecided(patch: Patch) -> None:
    former = ShardHost.drop

    def drop(self: Any, reason: str, code: Any = ErrorCode.COORDINATOR_NOT_AVAILABLE, **_said: bool) -> None:
        former(self, reason, code, undecided=True)

    patch(ShardHost, "drop", drop)


@plant("aesthetics D2", "S13", 3, 9)
def a_call_of_unknown_outcome_is_sent_again(patch: Patch) -> None:
    patch(routing, "MOVED", routing.UNANSWERED)


# --- shared sessions ----------------------------------------------------------------------------------


@plant("aesthetics D2, faults R9", "L1")
def the_others_are_not_asked_before_an_expiry(patch: Patch) -> None:
    former = ShardHost.ring

    def ring(self: Any, timer: Any) -> None:
        self._ask = None
        former(self, timer)

    patch(ShardHost, "ring", ring)


@plant("aesthetics D2", "L2")
def a_new_owner_ignores_what_was_left_of_sessions(patch: Patch) -> None:
    def share_sessions(self: Any, _heard: Any) -> Any:
        return self.shard.share_sessions({}, 0, self._clock.now_ms()).timers

    patch(ShardHost, "_share_sessions", share_sessions)


# --- what no finding had, but a net of this kind must find ----------------------------------------------


@plant("the net", "L6 L7 L9 crash")
def a_cancelled_call_stays_parked(patch: Patch) -> None:
    patch(ShardHost, "cancel", lambda self, call: None)


@plant("the net", "L9 crash", 0, 1)
def stopping_waits_for_a_store_that_hangs(patch: Patch) -> None:
    async def flush(self: Any) -> None:
        await self.committer.flush()
        await asyncio.sleep(7)

    patch(Ownership, "flush", flush)


@plant("the net", "S15 D1 S13")
def a_closed_shard_still_decides(patch: Patch) -> None:
    former = ShardHost.close

    def close(self: Any, reason: str) -> None:
        former(self, reason)
        self._closed = False

    patch(ShardHost, "close", close)


@plant("the net", "crash L9", 0, 2)
def an_unreachable_store_ends_the_rounds(patch: Patch) -> None:
    former = Ownership._round

    async def run_round(self: Any) -> None:
        try:
            await former(self)
        except StoreUnavailable as error:
            raise RuntimeError("the store is away") from error

    patch(Ownership, "_round", run_round)
