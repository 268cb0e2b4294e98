"""One process of the production runtime in a simulated world: what `server/` builds, on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rota.core.replica.forwarding import shard_of_request
from rota.core.replica.going_back import StoreMemory
from rota.core.replica.owned_shard import OwnedShard
from rota.core.replica.ports import Answer
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    Request,
    SyncGroup,
    parks_for_ms,
)
from rota.server.runtime.clock import Clock
from rota.server.runtime.coordinator import RoutedCoordinator
from rota.testing.scheduler import Process
from tests.simulation.liveness import LivenessOfReplica
from tests.simulation.loop import ProcessLoop
from tests.simulation.peers import Forwarded, PeersOfReplica
from tests.simulation.store import StoreOfReplica
from tests.simulation.witness import WatchedCoordinator, Witness

if TYPE_CHECKING:
    from tests.simulation.network import Delivery
    from tests.simulation.world import World

LONGEST_ANSWER_MS = 9_000
"""How long a call may take beyond its own wait: a peer that is silent, then a shard that is moving."""
LONGEST_STOP_MS = 6_000
"""How long a process may take to stop: it waits for a store that hangs twice, and for a statement that is late."""


class ReplicaClock(Clock):
    """The two clocks of a process. Its wall clock is wrong by a constant of its own."""

    def __init__(self, loop: ProcessLoop, world: World, offset_ms: int) -> None:
        self._loop = loop
        self._scheduler = world.scheduler
        self._offset_ms = offset_ms

    def now_ms(self) -> int:
        return self._scheduler.now_ms + self._offset_ms

    def monotonic_ms(self) -> int:
        return self._loop.monotonic_ms()


class SimulatedReplica(Process):
    """`RoutedCoordinator` on `LocalCoordinator`, as `rota serve` starts them, with its clients' connections.

    It is one incarnation of a replica; after a crash another one takes its address.
    """

    def __init__(self, world: World, replica_id: str) -> None:
        self.world = world
        self.started_ms = world.scheduler.now_ms
        self._paused_until_ms = 0
        self.slept_ms = 0
        """For how long it has been paused, all pauses together."""
        super().__init__()
        self.replica_id = replica_id
        """Its address: clients and the network know it by this."""
        self.owner_id = world.new_owner_id(replica_id)
        """Its name in the store."""
        self.cut_off_from_store_until_ms = 0
        clock_ms = world.rng.randint(10_000, 1_000_000)
        self.loop = ProcessLoop(world.scheduler, self, clock_ms, self._failed, is_interrupted=world.parts.interrupted)
        self.clock_offset_ms = world.clock_offset_of(replica_id)
        self.peers = PeersOfReplica(world, self)
        liveness = LivenessOfReplica(self, world.liveness) if world.liveness else None
        clock = ReplicaClock(self.loop, world, self.clock_offset_ms)
        self.store = StoreOfReplica(world, self)
        self.local = WatchedCoordinator(
            self.store,
            shard_count=world.profile.shards,
            limits=world.limits,
            clock=clock,
            telemetry=Witness(world, self),
            replica_id=self.owner_id,
            address=replica_id,
            lease_ms=world.profile.lease_ms,
            steal=world.parts.steals,
            peers=self.peers,
            forward=world.parts.forwards,
            liveness=liveness,
        )
        self.local.process = self
        self.local.reached_at(peer_address=replica_id)
        self.local._assigner.compute = world.assigning.compute
        self.routed = RoutedCoordinator(self.local)
        self.is_stopping = False
        self.deaf_to_store_until_ms = 0
        """Statements that are sent before then are carried out, and their answers are lost."""
        self._calls: dict[Delivery, tuple[int, asyncio.Task[None]]] = {}
        """Requests without an answer: since when, and the task that serves it."""
        self._forwarded: dict[Forwarded, asyncio.Task[None]] = {}
        self._main = self.loop.create_task(self._run())

    @property
    def paused_until_ms(self) -> int:
        return self._paused_until_ms

    @paused_until_ms.setter
    def paused_until_ms(self, until_ms: int) -> None:
        """Stop the process after its ready callbacks, so that no answer waits between two callbacks."""
        now_ms = self.world.scheduler.now_ms
        if until_ms > now_ms:
            self.loop.run_ready()
        self.slept_ms += max(0, until_ms - max(now_ms, self._paused_until_ms))
        self._paused_until_ms = until_ms

    @property
    def owned(self) -> Mapping[int, OwnedShard]:
        """The shards in its memory, by shard id."""
        return self.local.loop.leases.owned

    @property
    def memory(self) -> StoreMemory:
        return self.local.directory.memory

    def waiting(self) -> list[tuple[Delivery, int]]:
        """The requests that have no answer yet and since when they are here, unless the process is hindered."""
        return [] if self.is_hindered() else [(delivery, since_ms) for delivery, (since_ms, _) in self._calls.items()]

    def is_hindered(self) -> bool:
        """It has ended, is about to, is paused, or is cut off from the store."""
        is_paused = self.paused_until_ms > self.world.scheduler.now_ms
        return self.dead or self.is_stopping or is_paused or self.is_cut_off_from_store()

    def is_cut_off_from_store(self) -> bool:
        return self.world.scheduler.now_ms < self.cut_off_from_store_until_ms

    async def _run(self) -> None:
        await self.local.start()
        await self.local.watch_over()
        if not self.is_stopping:
            self._failed("a task of the runtime has ended")

    # --- requests --------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        request = delivery.call.request
        task = self.loop.create_task(self._serve(delivery, request))
        self._calls[delivery] = (self.world.scheduler.now_ms, task)
        task.add_done_callback(lambda _: self._calls.pop(delivery, None))

    async def _serve(self, delivery: Delivery, request: Request) -> None:
        began_ms, slept_ms = self.world.scheduler.now_ms, self.slept_ms
        answer = await self._answer(request)
        took_ms = self.world.scheduler.now_ms - began_ms - (self.slept_ms - slept_ms)
        if took_ms > parks_for_ms(request) + LONGEST_ANSWER_MS:
            self.world.violation(f"L6 {request} was answered after {took_ms} ms")
        delivery.answer(answer)

    async def _answer(self, request: Request) -> Answer:
        if isinstance(request, Heartbeat):
            at_hand = self.routed.try_heartbeat(request)
            if at_hand is not None:
                return at_hand
        if not isinstance(request, CommitOffsets | Heartbeat | JoinGroup | SyncGroup | LeaveGroup):
            return await self.routed.call(request)
        answered: asyncio.Future[Answer] = self.loop.create_future()
        cancel = self.routed.submit(request, partial(_answer_once, answered))
        try:
            return await answered
        except asyncio.CancelledError:
            if cancel is not None and parks_for_ms(request):
                cancel()
            raise

    def hang_up(self, delivery: Delivery) -> None:
        call = self._calls.get(delivery)
        if call is not None:
            self.world.sometimes("call cancelled by its client")
            call[1].cancel()

    def run_for_peer(self, forwarded: Forwarded, serving: Any) -> asyncio.Task[None]:
        """Serve what a peer has forwarded."""
        task = self._forwarded[forwarded] = self.loop.create_task(serving)
        task.add_done_callback(lambda _: self._forwarded.pop(forwarded, None))
        return task

    def note_answer(self, request: Request, answer: Answer) -> None:
        """The runtime has let go of an answer that it gives as the owner of a shard."""
        shard_id = shard_of_request(request, self.world.profile.shards)
        owned = self.owned.get(shard_id)
        if owned is not None and owned.epoch == answer.epoch:
            self._check_lease(owned)
        self.world.note_release(self.owner_id, shard_id, answer.epoch, answer.revision)

    def _check_lease(self, owned: OwnedShard) -> None:
        """S15: by its own reckoning, a lease is over before the store says so, unless the store's clock was set."""
        world, tables, now_ms = self.world, self.world.store.tables, self.world.scheduler.now_ms
        store_ms = tables.lease_left_ms(owned.shard_id)
        store_ms += world.history.stepped_ahead_ms(now_ms - world.profile.lease_ms)
        is_ours = tables.owner_of(owned.shard_id) == self.owner_id and not world.parts.steals
        left_ms = owned.lease_until_ms - self.loop.monotonic_ms()
        if is_ours and left_ms > store_ms and not world.is_excused(owned.shard_id):
            world.violation(f"S15 shard {owned.shard_id}: the lease lasts longer here than in the store")

    def note_recorded(self, answer: Answer | None) -> None:
        """A heartbeat found no owner: it was recorded in the liveness store, or was not."""
        self.world.sometimes("heartbeat recorded for a silent owner" if answer else "heartbeat without an owner")

    # --- what happens to it -----------------------------------------------------------------------

    def sweep(self) -> None:
        self.loop.create_task(self.local.loop.sweep_all())

    def hand_over(self) -> None:
        """Stop as on SIGTERM, then come back as a new process."""
        if not self.dead and not self.is_stopping:
            self.is_stopping = True
            self.loop.create_task(self._stop())
            self.world.scheduler.after(LONGEST_STOP_MS, self, self._must_have_stopped, self.slept_ms)

    async def _stop(self) -> None:
        self.world.sometimes("replica stops")
        await self.routed.drain()
        await asyncio.sleep(self.world.rng.random() * 0.1)
        await self.routed.stop()
        self.peers.check_drained()
        self.world.sometimes("replica stopped")
        self.crash()
        self.world.nemesis.start_again(self)

    def _must_have_stopped(self, slept_ms: int) -> None:
        if self.slept_ms == slept_ms:
            self._failed(f"it has not stopped within {LONGEST_STOP_MS} ms")

    def crash(self) -> None:
        """Everything in memory is gone; open connections break."""
        self.dead = True
        if self.store.is_appending:
            self.world.sometimes("owner died with an append under way")
        for delivery in self._calls:
            delivery.break_off()
        for forwarded in self._forwarded:
            forwarded.break_off("connection reset")
        self._calls.clear()
        self._forwarded.clear()

    def end(self) -> None:
        """The world is over."""
        self.dead = True
        self.loop.end()

    def _failed(self, what: str) -> None:
        self.world.violation(f"crash: {self.owner_id}: {what}")


def _answer_once(answered: asyncio.Future[Answer], answer: Answer) -> None:
    """The client may have hung up."""
    if not answered.done():
        answered.set_result(answer)
