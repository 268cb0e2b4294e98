"""Replicas among themselves over the simulated network: requests are forwarded, delayed, cut off, and break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rota.core.replica import forwarding
from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import Answer, Cancel, JournalEvent, Replica, ShardOwner
from rota.protocol.messages import Heartbeat, Request, parks_for_ms
from tests.simulation.network import may_repeat

if TYPE_CHECKING:
    from tests.simulation.replica import SimulatedReplica
    from tests.simulation.world import World

HELD_S = 0.3
LATEST_TWIN_MS = 300
SILENT_MS: dict[type, int] = {Heartbeat: 1_200}
"""How long a peer may be silent, beyond the call's own wait: an owner answers heartbeats from memory."""
LONGEST_SILENCE_MS = 5_200


class Forwarded:
    """One request at a peer, from sending to its first outcome."""

    __slots__ = ("_peer", "_peers", "_task", "outcome")

    def __init__(self, peers: PeersOfReplica, peer: Replica) -> None:
        self._peers = peers
        self._peer = peer
        self._task: asyncio.Task[None] | None = None
        self.outcome: asyncio.Future[Answer | NoAnswer] = peers.replica.loop.create_future()

    def arrive(self, request: Request) -> None:
        """At the peer, unless it has ended meanwhile."""
        target = self._peers.running(self._peer)
        if target is None:
            self.break_off("connection refused")
            return
        self._task = target.run_for_peer(self, self._serve(target, request))

    async def _serve(self, target: SimulatedReplica, request: Request) -> None:
        answer = forwarding.as_moved(await target.local.call(request))
        self._peers.carry(target.replica_id, self._peers.replica.replica_id, self._settle, answer)

    def break_off(self, reason: str) -> None:
        """The peer's end of the connection is gone."""
        self._peers.world.sometimes("peer ended with a forwarded call")
        self._peers.carry(self._peer.address, self._peers.replica.replica_id, self._fail, reason)

    def cancel(self) -> None:
        """The caller has gone; at the peer the call is cancelled."""
        if self._task is not None:
            self._task.cancel()

    def _settle(self, answer: Answer) -> None:
        if self._peers.has_wrong_form("a peer"):
            self._fail("its answer cannot be read")
        elif not self.outcome.done():
            self.outcome.set_result(answer)
        else:
            self._peers.world.sometimes("peer answered too late")

    def _fail(self, reason: str) -> None:
        if not self.outcome.done():
            self.outcome.set_result(NoAnswer(reason))


class PeersOfReplica:
    """`Peers` for one replica."""

    def __init__(self, world: World, replica: SimulatedReplica) -> None:
        self.world = world
        self.replica = replica
        self._parked: list[Request] = []
        """Requests at peers that may wait there."""

    def check_drained(self) -> None:
        """L6: a replica that has stopped keeps no client waiting for a call parked at a peer."""
        for request in self._parked:
            self.world.violation(f"L6 {request} is parked at a peer of a replica that has stopped")

    def submit(self, peer: Replica, request: Request, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        """Ask a peer; see `rota.server.runtime.forwarding.Peers`."""

        async def ask() -> None:
            done(await self._asked(peer, request))

        return self.replica.loop.create_task(ask()).cancel

    async def _asked(self, peer: Replica, request: Request) -> Answer | NoAnswer:
        forwarded = Forwarded(self, peer)
        sent_ms, slept_ms = self.world.scheduler.now_ms, self.replica.slept_ms
        self.world.sometimes("request forwarded to a peer")
        self.world.sometimes(f"{type(request).__name__} forwarded")
        self.carry(self.replica.replica_id, peer.address, forwarded.arrive, request, to=peer)
        self._repeat(peer, request)
        if parks_for_ms(request):
            self._parked.append(request)
        try:
            async with asyncio.timeout(forwarding.answer_timeout_ms(request) / 1000):
                return await forwarded.outcome
        except TimeoutError:
            self.world.sometimes("peer did not answer in time")
            return NoAnswer("no answer in time")
        finally:
            if parks_for_ms(request):
                self._parked.remove(request)
            if not forwarded.outcome.done() or forwarded.outcome.cancelled():
                if self.replica.slept_ms == slept_ms:
                    self._check_silence(request, self.world.scheduler.now_ms - sent_ms)
                self.carry(self.replica.replica_id, peer.address, forwarded.cancel, to=peer)

    def _repeat(self, peer: Replica, request: Request) -> None:
        """Have the network deliver some requests twice."""
        world = self.world
        if world.network.faulty and world.profile.loss and may_repeat(request) and world.chance(world.profile.loss):
            twin, delay_ms = Forwarded(self, peer), int(world.rng.random() * LATEST_TWIN_MS)
            ends = (self.replica.replica_id, peer.address)
            world.scheduler.after(delay_ms, None, partial(self.carry, *ends, twin.arrive, request, to=peer))
            world.sometimes("forwarded request delivered twice")

    def _check_silence(self, request: Request, silent_ms: int) -> None:
        """L6: a client is not kept waiting for a peer that is silent, unless this replica was paused."""
        if silent_ms > parks_for_ms(request) + SILENT_MS.get(type(request), LONGEST_SILENCE_MS):
            self.world.violation(f"L6 {request} has waited for a silent peer for {silent_ms} ms")

    async def watch(
        self, _peer: Replica, _namespace: str, _group_id: str, _after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        """No simulated client follows a group at a peer: the stream ends at once."""
        events: tuple[JournalEvent, ...] = ()
        for event in events:
            yield event

    async def held(self, owners: Sequence[ShardOwner]) -> Collection[int]:
        """Ask one owner after the other: at most two have failed."""
        held: set[int] = set()
        for owner in owners:
            held.update(await self._held_by(owner))
        return held

    async def _held_by(self, owner: ShardOwner) -> list[int]:
        peer = Replica(owner.replica_id, owner.address)
        outcome: asyncio.Future[list[int]] = self.replica.loop.create_future()

        def arrive() -> None:
            target = self.running(peer)
            held = target.local.held(owner.replica_id, {owner.shard_id: owner.epoch}) if target is not None else []
            self.carry(peer.address, self.replica.replica_id, settle, held)

        def settle(held: list[int]) -> None:
            if not outcome.done():
                outcome.set_result(held)

        self.carry(self.replica.replica_id, peer.address, arrive, to=peer)
        try:
            async with asyncio.timeout(HELD_S):
                return await outcome
        except TimeoutError:
            return []

    async def notify_released(self, peers: Sequence[Replica]) -> None:
        for peer in peers:
            self._notify(peer, lambda target: target.local.nudge())

    async def notify_topics_changed(self, peers: Sequence[Replica], namespaces: Sequence[str]) -> None:
        for peer in peers:
            if not self.world.assigning.is_notification_lost():
                is_wrong = self.has_wrong_form("a topic notification")
                named = ["no namespace\x00"] if is_wrong else namespaces
                self._notify(peer, lambda target, named=named: target.local.on_topics_changed(named))  # type: ignore[misc]

    async def close(self) -> None:
        """There is no connection to close."""

    def has_wrong_form(self, sender: str) -> bool:
        """Whether the next message of this sender cannot be read."""
        return self.world.wrong_forms.has_next(sender)

    def running(self, peer: Replica) -> SimulatedReplica | None:
        """The process that registered as `peer`, if it still runs."""
        replica = self.world.replicas[peer.address]
        return replica if replica.owner_id == peer.replica_id and not replica.dead else None

    def _notify(self, peer: Replica, act: Callable[[SimulatedReplica], None]) -> None:
        def arrive() -> None:
            target = self.running(peer)
            if target is not None:
                act(target)

        self.carry(self.replica.replica_id, peer.address, arrive, to=peer)

    def carry(
        self, sender: str, receiver: str, act: Callable[..., None], *args: Any, to: Replica | None = None
    ) -> None:
        """A message between two replicas. It is handled by the process that it is for, when that is awake."""
        process = self.replica if to is None else self.running(to)
        if not self.world.is_link_cut(sender, receiver) and not self.world.network.is_lost(sender, receiver):
            self.world.scheduler.after(self.world.network.delay_ms(), process, act, *args)
