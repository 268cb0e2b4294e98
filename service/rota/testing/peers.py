"""Calls that one simulated replica forwards to another: production's `Forwarding`, over the simulated network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from rota.protocol.messages import Heartbeat, HeartbeatMany, Request, parks_for_ms
from rota.replica import forwarding as step
from rota.replica.forwarding import DRAINING, POLL_MS, Forwarding, NoAnswer, Step
from rota.replica.ports import Answer
from rota.testing.history import Call
from rota.testing.network import may_repeat

if TYPE_CHECKING:
    from rota.testing.network import Delivery
    from rota.testing.replica import Replica
    from rota.testing.world import World

LATEST_TWIN_MS = 300
LONGEST_WAIT_MS = 1_200
"""How long a call may wait for its shard to have an owner."""
SILENT_MS: dict[type, int] = {Heartbeat: 1_200}
"""How long a peer may be silent, beyond the call's own wait: an owner answers heartbeats from memory."""
LONGEST_SILENCE_MS = 5_200


class Incoming(Protocol):
    """One request at a replica, with the way back for its answer."""

    @property
    def call(self) -> Call: ...

    def answer(self, answer: Answer) -> None:
        """The answer leaves the replica."""

    def break_off(self) -> None:
        """The replica is gone, and the connection with it."""


class PeersOfReplica:
    """What a replica forwards, and the clients that wait for that."""

    def __init__(self, world: World, replica: Replica) -> None:
        self.world = world
        self.replica = replica
        self.forwarding = Forwarding(replica.keeper.known, replica.owned, forwards=world.forwards)
        self._calls: dict[Delivery, RoutedCall] = {}
        self._arrivals: list[Callable[[], None]] = []
        self._readers: list[Callable[[], None]] = []
        self._is_reading = False

    def call(self, delivery: Delivery, request: Request) -> None:
        """Answer a client's request, wherever its shard is."""
        call = self._calls[delivery] = RoutedCall(self, delivery, request)
        call.begin()

    def end(self, delivery: Delivery, answer: Answer) -> None:
        """The call has come to its answer."""
        del self._calls[delivery]
        delivery.answer(answer)

    def hang_up(self, delivery: Delivery) -> bool:
        """The client has gone; False where the request did not go through here."""
        call = self._calls.pop(delivery, None)
        if call is not None:
            call.cancel()
        return call is not None

    def drain(self) -> None:
        """This replica stops: calls that its clients have parked at peers end."""
        self.forwarding.is_draining = True
        for call in list(self._calls.values()):
            call.end_wait()

    def check_drained(self) -> None:
        """L6: a replica that has stopped keeps no client waiting for a call parked at a peer."""
        for call in self._calls.values():
            call.check_drained()

    def crash(self) -> None:
        """The connections to clients break. Requests on their way to peers arrive there."""
        for delivery in self._calls:
            delivery.break_off()
        self._calls.clear()

    # --- the owners --------------------------------------------------------------------------------

    def note_arrival(self) -> None:
        """A shard was loaded here."""
        arrivals, self._arrivals = self._arrivals, []
        for go_on in arrivals:
            go_on()

    def await_arrival(self, until_ms: int, go_on: Callable[[], None]) -> None:
        self._arrivals.append(go_on)
        self.after(until_ms, go_on)

    def read_owners(self, until_ms: int, go_on: Callable[[], None]) -> None:
        """Read them once for all that wait, at most every `POLL_MS`."""
        known, now_ms = self.replica.keeper.known, self.world.scheduler.now_ms
        if now_ms - known.read_ms < POLL_MS:
            go_on()
            return
        self._readers.append(go_on)
        self.after(until_ms, go_on)
        if not self._is_reading:
            self._is_reading = True
            known.read_ms = now_ms
            self.replica.keeper.read_owners(self._have_read, self._have_read)

    def _have_read(self, _answer: None = None) -> None:
        self._is_reading = False
        readers, self._readers = self._readers, []
        for go_on in readers:
            go_on()

    def after(self, until_ms: int, go_on: Callable[[], None]) -> None:
        self.world.scheduler.after(max(0, until_ms - self.world.scheduler.now_ms), self.replica, go_on)


class RoutedCall:
    """One client's call at the replica that received it. Carries out one step at a time."""

    def __init__(self, peers: PeersOfReplica, delivery: Delivery, request: Request) -> None:
        self._peers = peers
        self._delivery = delivery
        self._steps = peers.forwarding.call(request, peers.world.scheduler.now_ms)
        self._turn = 0
        """Counts the steps: a late answer to an earlier one is not taken for that of this one."""
        self._asked = 0
        self._began_ms = peers.world.scheduler.now_ms
        self._waited_ms = 0
        """For how long it has waited, all in all, for its shard to have an owner."""
        self._step_ms = 0
        self._request = request
        self._under_way: AskedHere | Forwarded | None = None
        self._parks = False

    def begin(self) -> None:
        self._advance(lambda: next(self._steps))

    def cancel(self) -> None:
        """The client has gone."""
        self._turn += 1
        if self._under_way is not None:
            self._under_way.cancel()

    def end_wait(self) -> None:
        """This replica stops."""
        if self._parks and self._under_way is not None:
            self._peers.world.sometimes("parked forwarded call ended by its stopping replica")
            self._under_way.cancel()
            self._go_on(self._turn, NoAnswer(DRAINING))

    def check_drained(self) -> None:
        if isinstance(self._under_way, Forwarded) and parks_for_ms(self._request):
            self._peers.world.violation(f"L6 {self._request} is parked at a peer of a replica that has stopped")

    def _go_on(self, turn: int, answer: Any) -> None:
        if turn == self._turn:
            self._advance(lambda: self._steps.send((answer, self._peers.world.scheduler.now_ms)))

    def _advance(self, advance: Callable[[], Step]) -> None:
        self._turn += 1
        if self._under_way is None and self._step_ms:
            self._waited_ms += self._peers.world.scheduler.now_ms - self._step_ms
            self._check_wait()
        self._under_way, self._parks = None, False
        self._step_ms = self._peers.world.scheduler.now_ms
        try:
            do = advance()
        except StopIteration as end:
            self._peers.end(self._delivery, end.value)
        else:
            self._do(do, self._turn)

    def _check_wait(self) -> None:
        """L6: a call does not wait for long for its shard to have an owner, unless the replica was paused."""
        bound_ms = LONGEST_WAIT_MS * (3 if isinstance(self._request, Heartbeat | HeartbeatMany) else 1)
        if self._waited_ms > bound_ms and self._peers.replica.paused_until_ms < self._began_ms:
            self._peers.world.violation(f"L6 {self._request} has waited for an owner for {self._waited_ms} ms")

    def _do(self, do: Step, turn: int) -> None:
        peers, call = self._peers, self._delivery.call

        def go_on(answer: Any = None) -> None:
            self._go_on(turn, answer)

        if isinstance(do, step.AskHere | step.AskPeer):
            self._asked += 1
            if self._asked > 1:
                peers.world.sometimes("call sent to the next owner")
        match do:
            case step.AskHere(request):
                self._under_way = here = AskedHere(peers.replica, call, go_on)
                peers.replica.serve(here, request)
            case step.AskPeer(peer, request, parks):
                self._parks = parks
                self._under_way = forwarded = Forwarded(peers, peer.replica_id, call, request, go_on)
                forwarded.send()
            case step.ReadOwners(until_ms):
                peers.read_owners(until_ms, go_on)
            case step.AwaitArrival(until_ms):
                peers.world.sometimes("forwarded call waits for an owner")
                peers.await_arrival(until_ms, go_on)
            case step.Pause(until_ms):
                peers.after(until_ms, go_on)
            case step.RecordHeartbeat(request):
                if peers.replica.sessions is None:
                    go_on()
                else:
                    peers.replica.sessions.record(call.shard_id, request, go_on)


class AskedHere:
    """A client's request at this replica's own shards."""

    def __init__(self, replica: Replica, call: Call, done: Callable[[Answer], None]) -> None:
        self.call = call
        self.answer = done
        self._replica = replica

    def break_off(self) -> None:
        """The call of the client breaks by itself."""

    def cancel(self) -> None:
        self._replica.cancel(self)


class Forwarded:
    """One request of a client on its way to a peer, there, and on its way back."""

    def __init__(
        self,
        peers: PeersOfReplica,
        peer_id: str,
        call: Call,
        request: Request,
        done: Callable[[Answer | NoAnswer], None] | None,
    ) -> None:
        self.call = call
        self._peers = peers
        self._peer_id = peer_id
        self._request = request
        self._done = done
        """None for a duplicate: no caller receives its answer."""
        self._sent_ms = peers.world.scheduler.now_ms

    def send(self) -> None:
        peers, world = self._peers, self._peers.world
        world.sometimes("request forwarded to a peer")
        self._carry(self._arrive)
        world.scheduler.after(step.answer_timeout_ms(self._request), peers.replica, self._time_out)
        network = world.network
        if network.faulty and world.profile.loss and may_repeat(self._request) and world.chance(world.profile.loss):
            twin = Forwarded(peers, self._peer_id, self.call, self._request, None)
            world.scheduler.after(int(world.rng.random() * LATEST_TWIN_MS), None, twin._carry, twin._arrive)
            world.sometimes("forwarded request delivered twice")

    def answer(self, answer: Answer) -> None:
        """The peer's answer leaves it."""
        if self._done is not None:
            self._carry_back(step.as_moved(answer))

    def break_off(self) -> None:
        """The peer's end of the connection is gone."""
        if self._done is not None:
            self._peers.world.sometimes("peer ended with a forwarded call")
            self._carry_back(NoAnswer("connection reset"))

    def cancel(self) -> None:
        """The call is wanted no more: it is cancelled at the peer, unless that message is lost."""
        self._check_silence()
        self._done = None
        self._carry(self._cancel_there)

    def _carry(self, act: Callable[[], None]) -> None:
        """A message to the peer."""
        world, here = self._peers.world, self._peers.replica.replica_id
        if not world.is_link_cut(here, self._peer_id) and not world.network.is_lost(here, self._peer_id):
            world.scheduler.after(world.network.delay_ms(), None, act)

    def _carry_back(self, outcome: Answer | NoAnswer) -> None:
        world, here = self._peers.world, self._peers.replica
        if not world.is_link_cut(here.replica_id, self._peer_id) and not world.network.is_lost(
            self._peer_id, here.replica_id
        ):
            world.scheduler.after(world.network.delay_ms(), here, self._settle, outcome)

    def _arrive(self) -> None:
        target = self._running_peer()
        if target is None:
            self.break_off()
        else:
            self._peers.world.scheduler.after(0, target, target.serve, self, self._request)

    def _cancel_there(self) -> None:
        target = self._running_peer()
        if target is not None:
            self._peers.world.scheduler.after(0, target, target.cancel, self)

    def _running_peer(self) -> Replica | None:
        target = self._peers.world.replicas[self._peer_id]
        return None if target.dead else cast("Replica", target)

    def _settle(self, outcome: Answer | NoAnswer) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)
        else:
            self._peers.world.sometimes("peer answered too late")

    def _check_silence(self) -> None:
        """L6: a client is not kept waiting for a peer that is silent, unless this replica was paused."""
        silent_ms = self._peers.world.scheduler.now_ms - self._sent_ms
        may_take_ms = parks_for_ms(self._request) + SILENT_MS.get(type(self._request), LONGEST_SILENCE_MS)
        if silent_ms > may_take_ms and self._peers.replica.paused_until_ms < self._sent_ms:
            self._peers.world.violation(f"L6 {self._request} has waited for a silent peer for {silent_ms} ms")

    def _time_out(self) -> None:
        if self._done is not None:
            self._peers.world.sometimes("peer did not answer in time")
            done = self._done
            self.cancel()
            done(NoAnswer("no answer in time"))
