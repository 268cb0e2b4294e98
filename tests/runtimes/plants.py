"""Defects of the runtime, planted again in the production code: each is a context manager that patches it while open.

A row names the finding that it is from, the rules of which one must be reported, and a seed that reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rota.replica.leases import Leases
from rota.replica.owned_shard import OwnedShard
from rota.replica.ports import LivenessUnavailable, StoreUnavailable
from rota.replica.shared_liveness import UNAVAILABLE
from rota.runtime.loop import ShardLoop
from rota.runtime.ownership import Ownership
from rota.runtime.sessions import SharedSessions
from tests.sim.mutants import MUTANTS

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


def shared(name: str, finding: str, rules: str, *seeds: int) -> None:
    """A defect that the model of a replica finds, too: it is planted in the rules that both have."""
    table = PLANTS if seeds else OPEN_PLANTS
    table[name] = Plant(finding, tuple(rules.split()), seeds, MUTANTS[name])


# --- the order of commit and answer, and leases -----------------------------------------------------

shared("reply_before_commit", "aesthetics D1", "D1", 0, 1)
shared("lease_is_not_watched", "aesthetics D1", "S15", 32)
shared("later_replies_released", "aesthetics D2", "D1", 1, 2)
shared("answered_from_memory", "aesthetics D2, faults R1, R2", "D1", 0, 1)
shared("only_one_shard_is_given_up", "aesthetics D2", "D3")
shared("unknown_outcome_is_failure", "faults R5", "D3", 1)
shared("claimed_lease_counts_from_the_answer", "aesthetics D2, faults R8", "S15")
shared("lease_counts_from_the_answer", "faults R3", "S15")
shared("a_lease_that_ran_out_is_renewed", "faults R4", "L1 L2 L6 L7")
shared("stale_renewal_reinstalls", "aesthetics D2", "S11 S15 L7 crash", 1)
shared("replies_after_the_lease", "aesthetics D2, faults R6", "S15", 9)


@contextmanager
def _pair() -> Iterator[None]:
    with MUTANTS["reply_before_commit"](), MUTANTS["lease_is_not_watched"]():
        yield


PLANTS["both_of_the_pair"] = Plant("aesthetics D1", ("D1", "S15"), (0, 1), _pair)


@plant("aesthetics D2", "S15", 176)
def a_renewal_counts_from_the_answer_and_never_gives_up(patch: Patch) -> None:
    def renewed(self: Any, sent: Any, _kept: Any, _sent_ms: int, now: Any) -> Any:
        for owned in sent.values():
            owned.lease_until_ms = now.monotonic_ms + self.lease_ms
        return []

    patch(Leases, "_renewed", renewed)


@plant("mission M7", "L13", 23, 121)
def an_embedded_store_has_leases_that_end(patch: Patch) -> None:
    former = Leases._renew

    def install(self: Any, owned: Any) -> None:
        self.owned[owned.shard_id] = owned
        self.known.memory.note_served(owned.shard_id)

    def renew(self: Any, now: Any) -> Any:
        steal, self.steal = self.steal, False
        try:
            return (yield from former(self, now))
        finally:
            self.steal = steal

    patch(Leases, "install", install)
    patch(Leases, "_renew", renew)


# --- hand-over and forwarding -------------------------------------------------------------------------


@plant("aesthetics D2", "L10", 0, 1)
def a_hand_over_does_not_flush(patch: Patch) -> None:
    async def flush(_self: Any) -> None:
        """Nothing is waited for."""

    patch(Ownership, "flush", flush)


shared("decided_calls_are_sent_elsewhere", "faults R7", "S13")
shared("a_write_of_unknown_outcome_counts_as_undecided", "the net", "S13 S9", 1)
shared("a_call_of_unknown_outcome_is_sent_again", "aesthetics D2", "S13", 1, 3)

# --- shared sessions ----------------------------------------------------------------------------------

shared("the_others_are_not_asked_before_an_expiry", "aesthetics D2, faults R9", "L1")
shared("a_new_owner_ignores_what_was_left_of_sessions", "aesthetics D2", "L2", 790)


@plant("faults D1", "crash L9", 4, 40)
def a_garbled_answer_of_the_liveness_store_ends_the_process(patch: Patch) -> None:
    async def ask_store(self: Any, do: Any) -> Any:
        try:
            return await self._do(do)
        except LivenessUnavailable:
            return UNAVAILABLE

    patch(SharedSessions, "_ask_store", ask_store)


# --- what no finding had, but a net of this kind must find ----------------------------------------------


@plant("the net", "L6 L7 L9 crash")
def a_cancelled_call_stays_parked(patch: Patch) -> None:
    patch(ShardLoop, "cancel", lambda self, call: None)


@plant("the net", "L9 crash", 0, 1)
def stopping_waits_for_a_store_that_hangs(patch: Patch) -> None:
    async def flush(self: Any) -> None:
        await self.loop.flush()
        await asyncio.sleep(7)

    patch(Ownership, "flush", flush)


@plant("the net", "S15 D1 S13")
def a_closed_shard_still_decides(patch: Patch) -> None:
    former = OwnedShard.close

    def close(self: Any, reason: str, now: Any) -> Any:
        ready = former(self, reason, now)
        self.is_closed = False
        return ready

    patch(OwnedShard, "close", close)


@plant("the net", "crash L9", 3, 7)
def an_unreachable_store_ends_the_rounds(patch: Patch) -> None:
    former = Ownership._carry_out

    async def carry_out(self: Any, steps: Any) -> None:
        try:
            await former(self, steps)
        except StoreUnavailable as error:
            raise RuntimeError("the store is away") from error

    patch(Ownership, "_carry_out", carry_out)
