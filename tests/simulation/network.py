"""The network between clients and replicas: delays, losses, duplicates, cuts in one direction or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, JoinGroup, JoinReply, Reply, Request, SyncGroup
from rota.testing.scheduler import Process
from tests.simulation.history import Call

if TYPE_CHECKING:
    from tests.simulation.world import World

MAX_HOPS = 3
_AT_THE_WORST_MOMENT = 0.05


class Client(Process):
    """Anything that calls the service. It remembers which replica answered for a shard last."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.owner_of: dict[int, str] = {}
        self.tried = 0
        """Where no owner is known the replicas are tried in turn: at random, a silent one could be hit for ever."""
        self.exchanges: dict[int, Exchange] = {}


class Delivery:
    """One request at one replica, with the way back for its answer."""

    __slots__ = ("call", "exchange", "replica_id")

    def __init__(self, exchange: Exchange | None, call: Call, replica_id: str) -> None:
        self.exchange = exchange
        """None for a duplicate: its answer has no receiver."""
        self.call = call
        self.replica_id = replica_id

    def answer(self, answer: Answer) -> None:
        """Send the answer; it may get lost, too."""
        if self.exchange is not None:
            self.exchange.network.carry_back(self, answer)

    def break_off(self) -> None:
        """The replica is gone, and the connection with it."""
        if self.exchange is not None:
            self.exchange.network.break_off(self)


class Exchange:
    """One call of a client, over as many hops as it takes."""

    __slots__ = ("call", "client", "delivery", "done", "hops", "network")

    def __init__(self, network: Network, client: Client, call: Call, done: Callable[[Reply | None], None]) -> None:
        self.network = network
        self.client = client
        self.call = call
        self.done: Callable[[Reply | None], None] | None = done
        self.hops = 0
        self.delivery: Delivery | None = None

    def settle(self, reply: Reply | None) -> None:
        """The first outcome counts: an answer, a broken connection, or the client's own timeout."""
        done, self.done = self.done, None
        if done is not None:
            del self.client.exchanges[self.call.number]
            done(reply)

    def time_out(self) -> None:
        if self.done is not None:
            # A replica that does not answer may never do so again: the next call goes elsewhere.
            self.client.owner_of.pop(self.call.shard_id, None)
            self.network.hang_up(self)
            self.settle(None)

    def cancel(self) -> None:
        """The client does not wait for the answer any more, and goes elsewhere with its next call."""
        if self.done is not None:
            self.done = None
            self.client.owner_of.pop(self.call.shard_id, None)
            del self.client.exchanges[self.call.number]
            self.network.hang_up(self)


class Network:
    """Carries calls. Cut links are kept by name, for each direction, with the time when they heal."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.faulty = True
        self.cut_to: dict[str, int] = {}
        self.cut_from: dict[str, int] = {}
        self._assigned: dict[str, Call] = {}
        """The last sync of each leader, by member id."""

    def call(self, client: Client, request: Request, timeout_ms: int, done: Callable[[Reply | None], None]) -> Exchange:
        """Send a request; `done` gets the reply, or None where none came in time."""
        call = self._world.new_call(client.name, request)
        exchange = Exchange(self, client, call, done)
        client.exchanges[call.number] = exchange
        self._world.scheduler.after(timeout_ms, client, exchange.time_out)
        self._forward(exchange, client.owner_of.get(call.shard_id))
        return exchange

    def hang_up(self, exchange: Exchange) -> None:
        """Tell the replica that the client has gone; the word may get lost like any other."""
        delivery = exchange.delivery
        if delivery is not None and not self.is_lost(exchange.client.name, delivery.replica_id):
            self._world.scheduler.after(self.delay_ms(), None, self._hung_up, delivery)

    def carry_back(self, delivery: Delivery, answer: Answer) -> None:
        exchange, reply = delivery.exchange, answer.reply
        assert exchange is not None
        if isinstance(reply, JoinReply) and reply.member_id == reply.leader_id:
            self._repeat_assignment(delivery.replica_id, reply.member_id)
        if not self.is_lost(delivery.replica_id, exchange.client.name):
            delay_ms = self.delay_ms()
            self._world.scheduler.after(delay_ms, exchange.client, self._arrive, delivery, answer)

    def break_off(self, delivery: Delivery) -> None:
        exchange = delivery.exchange
        if exchange is not None and not self.is_lost(delivery.replica_id, exchange.client.name):
            exchange.client.owner_of.pop(exchange.call.shard_id, None)
            self._world.scheduler.after(self.delay_ms(), exchange.client, exchange.settle, None)

    def _forward(self, exchange: Exchange, replica_id: str | None) -> None:
        world = self._world
        if replica_id is None:
            exchange.client.tried += 1
            replica_id = world.replica_ids[exchange.client.tried % len(world.replica_ids)]
        delivery = exchange.delivery = Delivery(exchange, exchange.call, replica_id)
        exchange.hops += 1
        request = exchange.call.request
        if isinstance(request, SyncGroup) and request.assignments:
            self._assigned[request.member_id] = exchange.call
        if not self.is_lost(exchange.client.name, replica_id):
            world.scheduler.after(self.delay_ms(), None, self._deliver, delivery)
        if self.faulty and world.profile.loss and may_repeat(request) and world.chance(world.profile.loss):
            twin = Delivery(None, exchange.call, replica_id)
            world.scheduler.after(self.delay_ms() + int(world.rng.random() * 300), None, self._deliver, twin)
            world.sometimes("request delivered twice")

    def _repeat_assignment(self, replica_id: str, member_id: str) -> None:
        """What a leader assigned to its last generation comes again at the worst moment: when the next one waits."""
        world, call = self._world, self._assigned.pop(member_id, None)
        if call is not None and self.faulty and world.profile.loss and world.chance(_AT_THE_WORST_MOMENT):
            world.scheduler.after(self.delay_ms(), None, self._deliver, Delivery(None, call, replica_id))
            world.sometimes("a leader's sync delivered again in its next generation")

    def _deliver(self, delivery: Delivery) -> None:
        replica = self._world.replicas.get(delivery.replica_id)
        if replica is None or replica.dead:
            delivery.break_off()
        elif replica.paused_until_ms > self._world.scheduler.now_ms:
            self._world.scheduler.after(0, replica, replica.receive, delivery)
        else:
            replica.receive(delivery)

    def _hung_up(self, delivery: Delivery) -> None:
        replica = self._world.replicas.get(delivery.replica_id)
        if replica is not None and not replica.dead:
            self._world.scheduler.after(0, replica, replica.hang_up, delivery)

    def _arrive(self, delivery: Delivery, answer: Answer) -> None:
        exchange, reply, hint = delivery.exchange, answer.reply, answer.owner
        assert exchange is not None
        if exchange.done is None or exchange.delivery is not delivery:
            return
        if reply.error is ErrorCode.NOT_COORDINATOR:
            exchange.client.owner_of.pop(exchange.call.shard_id, None)
            if hint and hint != delivery.replica_id and exchange.hops < MAX_HOPS:
                self._forward(exchange, hint)
                return
        else:
            self._note_owner(delivery, answer)
        self._world.note_reply(exchange.call, reply, answer.revision, answer.epoch)
        exchange.settle(reply)

    def _note_owner(self, delivery: Delivery, answer: Answer) -> None:
        """Where the client goes with its next request for this shard."""
        exchange = delivery.exchange
        assert exchange is not None
        if answer.epoch:
            exchange.client.owner_of[exchange.call.shard_id] = delivery.replica_id
        elif answer.reply.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or (
            answer.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE and self._world.parts.rotates
        ):
            exchange.client.owner_of.pop(exchange.call.shard_id, None)

    def delay_ms(self) -> int:
        rng = self._world.rng
        if self.faulty and rng.random() < self._world.profile.slow_answers:
            return 1 + int(rng.random() * 400)
        return 1 + int(rng.random() * 8)

    def is_lost(self, sender: str, receiver: str) -> bool:
        now_ms = self._world.scheduler.now_ms
        if now_ms < self.cut_from.get(sender, 0) or now_ms < self.cut_to.get(receiver, 0):
            return True
        return self.faulty and self._world.chance(self._world.profile.loss)


def may_repeat(request: Request) -> bool:
    """What a careful proxy may send twice.

    A join that arrives once more counts as joining again, as in Kafka: it would stand for a member that is not waiting.
    A newcomer's first join only draws one more id, unless it is static: then it would fence its own twin.
    """
    if isinstance(request, JoinGroup):
        return not request.member_id and request.group_instance_id is None
    return not isinstance(request, CommitOffsets)
