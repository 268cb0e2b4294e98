"""One process of the production runtime in a simulated world: what `server/` builds, on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from rota.group.records import AssignmentSynced
from rota.group.shard import Shard
from rota.protocol.messages import (
    CommitOffsets,
    GetLeader,
    GetTopic,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    LeaveGroup,
    Request,
    SyncGroup,
    parks_for_ms,
)
from rota.replica.forwarding import Submitted
from rota.replica.going_back import Setback, StoreMemory
from rota.replica.owned_shard import OwnedShard
from rota.replica.ports import Answer, Cancel, JournalEvent
from rota.runtime.clock import Clock
from rota.runtime.coordinator import LocalCoordinator, RoutedCoordinator
from rota.runtime.telemetry import Telemetry
from rota.testing.history import Stall
from rota.testing.replicas import ReplicaProcess
from rota.testing.runtimes.liveness import LivenessOfReplica
from rota.testing.runtimes.loop import ProcessLoop
from rota.testing.runtimes.peers import Forwarded, PeersOfReplica
from rota.testing.runtimes.store import StoreOfReplica

if TYPE_CHECKING:
    from rota.testing.network import Delivery
    from rota.testing.runtimes.world import RuntimeWorld

LONGEST_ANSWER_MS = 9_000
"""How long a call may take beyond its own wait: a peer that is silent, then a shard that is moving."""
LONGEST_STOP_MS = 6_000
"""How long a process may take to stop: it waits for a store that hangs twice, and for a statement that is late."""


class Served(NamedTuple):
    """A shard in memory."""

    shard: Shard
    epoch: int


class ReplicaClock(Clock):
    """The two clocks of a process. Its wall clock is wrong by a constant of its own."""

    def __init__(self, loop: ProcessLoop, world: RuntimeWorld, offset_ms: int) -> None:
        self._loop = loop
        self._scheduler = world.scheduler
        self._offset_ms = offset_ms

    def now_ms(self) -> int:
        return self._scheduler.now_ms + self._offset_ms

    def monotonic_ms(self) -> int:
        return self._loop.monotonic_ms()


class Watched(LocalCoordinator):
    """The production coordinator; each answer that it gives as an owner is shown to the world as it leaves."""

    process: RuntimeReplica

    async def call(self, request: Request) -> Answer:
        answer = await super().call(request)
        self._show(request, answer)
        return answer

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        answer = super().try_heartbeat(request)
        if answer is not None:
            self._show(request, answer)
        return answer

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        def show(answer: Answer) -> None:
            self._show(request, answer)
            done(answer)

        return super().submit(request, show)

    async def record_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        answer = await super().record_heartbeat(request)
        self.process.note_recorded(answer)
        return answer

    def _show(self, request: Request, answer: Answer) -> None:
        # A waiting question is answered with the last known state: that may be of a former owner.
        if answer.epoch and not (isinstance(request, GetLeader | GetTopic) and request.wait_ms):
            self.process.note_answer(request, answer)


class Witness(Telemetry):
    """What the runtime tells about itself, for the checks."""

    def __init__(self, world: RuntimeWorld, replica: RuntimeReplica) -> None:
        self._world = world
        self._replica = replica
        self._loaded: dict[int, OwnedShard] = {}

    def on_commit(self, lines: Mapping[int, Sequence[JournalEvent]], _seconds: float) -> None:
        for shard_id in lines:
            owned = self._replica.shards.get(shard_id)
            if owned is not None and owned.is_appended and not self._world.is_over:
                self._world.compare_with_store(owned)
        for event in (event for of_shard in lines.values() for event in of_shard):
            if event.kind == AssignmentSynced.kind and (event.namespace, event.group_id) in self._world.served:
                is_anew = event.payload.get("resync")
                self._world.sometimes("the server assigned anew" if is_anew else "the server assigned")

    def on_shard_loaded(self, shard_id: int, epoch: int, _groups: int, _seconds: float) -> None:
        owned = self._loaded[shard_id] = self._replica.shards[shard_id]
        if not owned.claim.generation_floor:
            # Else it has raised generations already, which the journal says after this shard's first line.
            self._world.store.note_loaded(owned.shard, epoch)
        self._world.note_owner(self._replica, shard_id)

    def on_shard_dropped(self, shard_id: int, _epoch: int, reason: str) -> None:
        if reason.startswith("a broken invariant"):
            self._world.violation(f"crash: shard {shard_id} of {self._replica.owner_id}: {reason}")
        if reason == "handed over" and not self._loaded[shard_id].is_durable and self._replica.store.is_well():
            self._world.violation(
                f"L10 shard {shard_id}: {self._replica.owner_id} lets go of what it could have written"
            )
        if self._world.steals and reason in ("the lease is over", "the lease had run out before it was renewed"):
            self._world.violation(f"L13 shard {shard_id}: an embedded store's only process has lost it: {reason}")
        self._world.sometimes(f"shard dropped: {reason.partition(':')[0]}")

    def on_store_copied(self, shards: int) -> None:
        self._world.violation(f"L9 {self._replica.owner_id} takes its only store for a copy, for {shards} shards")

    def on_store_went_back(self, setbacks: Sequence[Setback]) -> None:
        self._world.note_setbacks(self._replica, setbacks)

    def on_late_timer(self, lateness_ms: int) -> None:
        stall = Stall(self._replica.owner_id, self._world.scheduler.now_ms, lateness_ms)
        self._world.history.stalls.append(stall)
        self._world.sometimes("timers were late and held back")


class RuntimeReplica(ReplicaProcess):
    """`RoutedCoordinator` on `LocalCoordinator`, as `rota serve` starts them, with its clients' connections."""

    def __init__(self, world: RuntimeWorld, replica_id: str) -> None:
        self._world = world
        self.started_ms = world.scheduler.now_ms
        self._paused_until_ms = 0
        self.slept_ms = 0
        """For how long it has been paused, all pauses together."""
        super().__init__(replica_id, world.new_owner_id(replica_id))
        clock_ms = world.rng.randint(10_000, 1_000_000)
        self.loop = ProcessLoop(
            world.scheduler, self, clock_ms, self._failed, is_interrupted=world.are_turns_interrupted
        )
        self.clock_offset_ms = world.clock_offset_of(replica_id)
        self.peers = PeersOfReplica(world, self)
        liveness = LivenessOfReplica(self, world.liveness) if world.liveness else None
        clock = ReplicaClock(self.loop, world, self.clock_offset_ms)
        self.store = StoreOfReplica(world, self)
        self.local = Watched(
            self.store,
            shard_count=world.profile.shards,
            limits=world.limits,
            clock=clock,
            telemetry=Witness(world, self),
            replica_id=self.owner_id,
            address=replica_id,
            lease_ms=world.profile.lease_ms,
            steal=world.steals,
            peers=self.peers,
            forward=world.forwards,
            liveness=liveness,
        )
        self.local.process = self
        self.local.reached_at(peer_address=replica_id)
        self.local._assigner.compute = world.topics.compute
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
        now_ms = self._world.scheduler.now_ms
        if until_ms > now_ms:
            self.loop.run_ready()
        self.slept_ms += max(0, until_ms - max(now_ms, self._paused_until_ms))
        self._paused_until_ms = until_ms

    @property
    def shards(self) -> dict[int, OwnedShard]:
        return self.local.loop.leases.owned

    @property
    def owned(self) -> dict[int, Served]:
        return {shard_id: Served(owned.shard, owned.epoch) for shard_id, owned in self.shards.items()}

    @property
    def memory(self) -> StoreMemory:
        return self.local.directory.memory

    def waiting(self) -> list[tuple[Delivery, int]]:
        """The requests that have no answer yet and since when they are here, unless the process is hindered."""
        return [] if self.is_hindered() else [(delivery, since_ms) for delivery, (since_ms, _) in self._calls.items()]

    def is_hindered(self) -> bool:
        """It has ended, is about to, is paused, or is cut off from the store."""
        is_paused = self.paused_until_ms > self._world.scheduler.now_ms
        return self.dead or self.is_stopping or is_paused or self.is_cut_off_from_store()

    def is_cut_off_from_store(self) -> bool:
        return self._world.scheduler.now_ms < self.cut_off_from_store_until_ms

    async def _run(self) -> None:
        await self.local.start()
        await self.local.watch_over()
        if not self.is_stopping:
            self._failed("a task of the runtime has ended")

    # --- requests --------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        request = delivery.call.request
        if isinstance(request, JoinGroup) and not request.member_id:
            request = replace(request, new_member_id=self._world.new_member_id(request.client_id))
        task = self.loop.create_task(self._serve(delivery, request))
        self._calls[delivery] = (self._world.scheduler.now_ms, task)
        task.add_done_callback(lambda _: self._calls.pop(delivery, None))

    async def _serve(self, delivery: Delivery, request: Request) -> None:
        began_ms, slept_ms = self._world.scheduler.now_ms, self.slept_ms
        answer = await self._answer(request)
        took_ms = self._world.scheduler.now_ms - began_ms - (self.slept_ms - slept_ms)
        if took_ms > parks_for_ms(request) + LONGEST_ANSWER_MS:
            self._world.violation(f"L6 {request} was answered after {took_ms} ms")
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
            self._world.sometimes("call cancelled by its client")
            call[1].cancel()

    def run_for_peer(self, forwarded: Forwarded, serving: Any) -> asyncio.Task[None]:
        """Serve what a peer has forwarded."""
        task = self._forwarded[forwarded] = self.loop.create_task(serving)
        task.add_done_callback(lambda _: self._forwarded.pop(forwarded, None))
        return task

    def note_answer(self, request: Request, answer: Answer) -> None:
        """The runtime has let go of an answer that it gives as the owner of a shard."""
        if not self._world.is_over:
            self._world.note_release(self.owner_id, self._world.shard_of(request), answer.epoch, answer.revision)

    def note_recorded(self, answer: Answer | None) -> None:
        """A heartbeat found no owner: it was recorded in the liveness store, or was not."""
        self._world.sometimes("heartbeat recorded for a silent owner" if answer else "heartbeat without an owner")

    # --- what happens to it -----------------------------------------------------------------------

    def sweep(self) -> None:
        self.loop.create_task(self.local.loop.sweep_all())

    def hand_over(self) -> None:
        """Stop as on SIGTERM, then come back as a new process."""
        if not self.dead and not self.is_stopping:
            self.is_stopping = True
            self.loop.create_task(self._stop())
            self._world.scheduler.after(LONGEST_STOP_MS, self, self._must_have_stopped, self.slept_ms)

    async def _stop(self) -> None:
        self._world.sometimes("replica stops")
        await self.routed.drain()
        await asyncio.sleep(self._world.rng.random() * 0.1)
        await self.routed.stop()
        self._world.sometimes("replica stopped")
        self.crash()
        self._world.nemesis.start_again(self)

    def _must_have_stopped(self, slept_ms: int) -> None:
        if self.slept_ms == slept_ms:
            self._failed(f"it has not stopped within {LONGEST_STOP_MS} ms")

    def crash(self) -> None:
        self.dead = True
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
        self._world.violation(f"crash: {self.owner_id}: {what}")


def _answer_once(answered: asyncio.Future[Answer], answer: Answer) -> None:
    """The client may have hung up."""
    if not answered.done():
        answered.set_result(answer)
