"""A simulated member: the real client core, and a shell that assigns, works, commits, dawdles and dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.core.membership import (
    Assigned,
    Event,
    Failed,
    JoinedAsLeader,
    Left,
    Lost,
    Membership,
    MembershipRequest,
    MembershipSettings,
    RebalanceStarted,
    State,
)
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    FetchOffsets,
    FetchReply,
    JoinedMember,
    OffsetToCommit,
    Protocol,
    Reply,
    TopicPartitions,
)
from tests.simulation.history import Departure, GroupKey, Hold
from tests.simulation.network import Client, Exchange

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPIC = "t"
SILENT_LEADER_MS = 100_000
CLOCK_RATE_ERROR = 0.01
"""How much too fast or slow a member's clock may run; the client core allows for twice as much."""
LONGEST_REVOCATION_MS = 150
RETENTIONS_MS = (None, 2_000, None, 20_000)
"""Of a member's commits, by turns: the server's, a shorter one and a longer one."""


class Share(NamedTuple):
    """What a member holds, and since when."""

    member_id: str
    generation_id: int
    partitions: tuple[int, ...]
    from_ms: int
    token: int


class Member(Client):
    """One process in one group, from its start to its end. Its shares are recorded in the history."""

    def __init__(self, world: World, name: str, group: GroupKey, group_instance_id: str | None) -> None:
        super().__init__(name)
        self.world = world
        self.tried = world.rng.randrange(len(world.replica_ids))
        self.group = group
        self._held: Share | None = None
        self._born_ms = world.scheduler.now_ms
        self._clock_ms = world.rng.randint(0, 1_000_000)
        """What its own clock showed when it started."""
        self._rate = 1 + world.rng.uniform(-CLOCK_RATE_ERROR, CLOCK_RATE_ERROR)
        self.core = Membership(self._settings(group_instance_id))
        self.membership_call: Exchange | None = None
        self.commit_call: Exchange | None = None
        self.positions: dict[int, int] = {}
        """The next offset to commit of each partition that is held, once it has been fetched."""
        self._plan_number = 0
        self._deadline_set_for_ms = -1
        self._valid_until_ms = 0
        self._metadata_version = 0
        self._plan()

    @property
    def group_instance_id(self) -> str | None:
        return self.core.settings.group_instance_id

    @property
    def holds(self) -> tuple[int, ...]:
        """The partitions it may work on now."""
        return () if self._held is None else self._held.partitions

    @property
    def is_live(self) -> bool:
        return not self.dead and not self.core.is_final

    def _settings(self, group_instance_id: str | None) -> MembershipSettings:
        rng, profile = self.world.rng, self.world.profile
        session_ms = rng.randint(*profile.session_ms)
        return MembershipSettings(
            *self.group,
            "worker",
            self._protocols(0),
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rng.randint(*profile.rebalance_ms),
            group_instance_id=group_instance_id,
            client_id=self.name,
            heartbeat_ms=None if rng.random() < 0.6 else session_ms // 10,
        )

    def _protocols(self, version: int) -> tuple[Protocol, ...]:
        names = ("even", "sticky") if self.world.rng.random() < 0.7 else ("sticky", "even")
        return tuple(Protocol(name, f"v{version}".encode()) for name in names)

    def now_ms(self) -> int:
        """Its own clock, which the client core is given: nothing but the passing of time can be read from it."""
        return self._clock_ms + int((self.world.scheduler.now_ms - self._born_ms) * self._rate)

    def _after(self, local_ms: int, act: Callable[..., None], *args: Any) -> None:
        """Do something when its own clock has gone on by so much."""
        self.world.scheduler.after(-int(-local_ms // self._rate), self, act, *args)

    # --- what others do to it --------------------------------------------------------------------

    def leave(self) -> None:
        self._handle(self.core.leave(self.now_ms(), "going home"))
        self.close_hold()
        self._plan()

    def crash(self) -> None:
        """Dies without a word. The sockets close, and the replicas may notice."""
        now_ms = self.world.scheduler.now_ms
        self.close_hold()
        if self.core.member_id and self.is_live:
            self.world.history.departures.append(Departure(self.group, self.core.member_id, now_ms))
        for exchange in list(self.exchanges.values()):
            exchange.cancel()
        self.dead = True

    def change_metadata(self) -> None:
        self._metadata_version += 1
        protocols = self._protocols(self._metadata_version)
        self._handle(self.core.request_rejoin(self.now_ms(), "new metadata", protocols))
        self._plan()

    def resync(self) -> bool:
        """As the leader of a Stable group: assign the partitions that were added since."""
        shares = self.world.shares.get((self.group, self.core.generation_id))
        if shares is None or not self.core.is_leader:
            return False
        grown = self.world.grow(self.group)
        heir = self.world.rng.choice(sorted(shares))
        given = {member_id: (*share, grown) if member_id == heir else share for member_id, share in shares.items()}
        if not self.core.resync({member_id: encode_share(share) for member_id, share in given.items()}):
            return False
        self.world.shares[(self.group, self.core.generation_id + 1)] = given
        self._plan()
        return True

    # --- the membership loop ---------------------------------------------------------------------

    def _plan(self) -> None:
        """Ask the core what to send next, and when. At most one membership call is under way."""
        now_ms = self.now_ms()
        call = self.membership_call
        if call is not None and call.done is not None:
            request = call.call.request
            if self.core.wants(request, now_ms):  # type: ignore[arg-type]  # only membership calls are kept there
                return
            call.cancel()
        self.membership_call = None
        planned = self.core.next_request(now_ms)
        self._plan_number += 1
        if planned is not None:
            self._after(planned.send_at_ms - now_ms, self._send, self._plan_number)

    def _send(self, plan_number: int) -> None:
        now_ms = self.now_ms()
        planned = self.core.next_request(now_ms)
        if plan_number != self._plan_number or planned is None:
            return
        if planned.send_at_ms > now_ms:
            self._plan()
            return
        request = planned.request
        self.membership_call = self.world.network.call(
            self, request, planned.timeout_ms, lambda reply: self._answered(request, now_ms, reply)
        )

    def _answered(self, request: MembershipRequest | CommitOffsets, sent_ms: int, reply: Reply | None) -> None:
        now_ms, jitter = self.now_ms(), self.world.rng.random()
        if reply is None:
            events = self.core.on_failure(request, sent_ms, now_ms, jitter)
        else:
            events = self.core.on_reply(request, reply, sent_ms, now_ms, jitter)
        self._handle(events)
        self._plan()

    def _on_deadline(self) -> None:
        self._deadline_set_for_ms = -1
        events = self.core.on_time(self.now_ms())
        self._handle(events)
        if events:
            self._plan()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case JoinedAsLeader():
                    self._lead(event)
                case Assigned():
                    self._hold(event.generation_id, decode_share(event.assignment))
                case RebalanceStarted():
                    delay_ms = int(self.world.rng.random() * LONGEST_REVOCATION_MS)
                    self.world.scheduler.after(delay_ms, self, self._revoked, event.generation_id)
                case Lost(reason="deadline"):
                    self.world.sometimes("share lost by the local deadline")
                    self.close_hold()
                case Lost() | Left() | Failed():
                    self.close_hold()
        self._watch_deadline()

    def _watch_deadline(self) -> None:
        deadline_ms = self.core.deadline_ms
        if deadline_ms is None:
            return
        self._valid_until_ms = self._born_ms + int((deadline_ms - self._clock_ms) / self._rate)
        if self._deadline_set_for_ms == -1:
            self._deadline_set_for_ms = deadline_ms
            self._after(max(deadline_ms - self.now_ms(), 0), self._on_deadline)

    # --- leading ---------------------------------------------------------------------------------

    def _lead(self, event: JoinedAsLeader) -> None:
        world = self.world
        generation_id, members = event.generation_id, event.members
        whim = world.rng.random() if world.troublesome else 1.0
        if whim < 0.03:
            world.sometimes("leader died before its sync")
            self.crash()
        elif whim < 0.06:
            self.core.assignment_failed(generation_id, "no idea")
        else:
            silent = whim < 0.075
            delay_ms = SILENT_LEADER_MS if silent else int(world.rng.random() * (300 if whim < 0.3 else 20))
            world.scheduler.after(delay_ms, self, self._assign, generation_id, members)

    def _assign(self, generation_id: int, members: tuple[JoinedMember, ...]) -> None:
        world = self.world
        if self.core.state is State.LEADING and self.core.generation_id == generation_id:
            shares: dict[str, tuple[int, ...]] = {member.member_id: () for member in members}
            order = sorted(shares)
            for partition in range(world.partitions[self.group]):
                heir = order[(partition + generation_id) % len(order)]
                shares[heir] += (partition,)
            world.shares[(self.group, generation_id)] = shares
            self.core.assign(generation_id, {member_id: encode_share(share) for member_id, share in shares.items()})
            self._plan()

    # --- holding and working ---------------------------------------------------------------------

    def _revoked(self, generation_id: int) -> None:
        if self.core.state is State.REVOKING and self.core.generation_id == generation_id:
            self.close_hold()
            self.core.rejoin(self.now_ms())
            self._plan()

    def _hold(self, generation_id: int, partitions: tuple[int, ...]) -> None:
        self.close_hold()
        now_ms = self.world.scheduler.now_ms
        held = self._held = Share(self.core.member_id, generation_id, partitions, now_ms, self.core.fencing_token)
        self.positions = {}
        if held.partitions:
            self._fetch(held)

    def close_hold(self) -> None:
        """The share is lost, at the latest since the member's own deadline."""
        if self._held is None:
            return
        held, self._held = self._held, None
        until_ms = min(self.world.scheduler.now_ms, self._valid_until_ms)
        self.world.history.holds.append(Hold(self.group, self.name, self.group_instance_id, *held, until_ms))

    def _fetch(self, held: Share) -> None:
        if self._held is not held:
            return
        request = FetchOffsets(*self.group, (TopicPartitions(TOPIC, held.partitions),))

        def fetched(reply: Reply | None) -> None:
            if self._held is not held:
                return
            if isinstance(reply, FetchReply) and reply.error is ErrorCode.NONE:
                self.positions = {found.partition: max(found.offset, 0) + 1 for found in reply.offsets}
                self._work(held)
            else:
                self.world.scheduler.after(100, self, self._fetch, held)

        self.world.network.call(self, request, 500, fetched)

    def _work(self, held: Share) -> None:
        """Write to the fenced resource and commit the progress, for as long as the share is held."""
        world = self.world
        if self._held is not held or not world.working:
            return
        if self.core.holds(self.now_ms()):
            partition = world.rng.choice(held.partitions)
            delay_ms = 1 + int(world.rng.random() * (3_000 if world.troublesome and world.chance(0.05) else 5))
            world.scheduler.after(delay_ms, None, world.fenced_write, self.group, partition, held)
            if self.commit_call is None or self.commit_call.done is None:
                self._commit(partition, held.generation_id)
        interval_ms = world.profile.work_every_ms
        world.scheduler.after(interval_ms // 2 + int(world.rng.random() * interval_ms), self, self._work, held)

    def _commit(self, partition: int, generation_id: int) -> None:
        now_ms = self.now_ms()
        offset = self.positions[partition]
        number = self.world.next_commit()
        retention_ms = RETENTIONS_MS[number % len(RETENTIONS_MS)]
        item = OffsetToCommit(TOPIC, partition, offset, None, f"{self.name}/{number}", retention_ms)
        request = CommitOffsets(*self.group, generation_id, (item,), self.core.member_id, self.group_instance_id)

        def committed(reply: Reply | None) -> None:
            if reply is not None and reply.error is ErrorCode.NONE and self.positions.get(partition) == offset:
                self.positions[partition] = offset + 1
            self._answered(request, now_ms, reply)

        self.commit_call = self.world.network.call(self, request, 1_000, committed)


def encode_share(partitions: tuple[int, ...]) -> bytes:
    return ",".join(map(str, partitions)).encode()


def decode_share(assignment: bytes) -> tuple[int, ...]:
    return tuple(int(partition) for partition in assignment.decode().split(",") if partition)
