# Written by docs/generate.py (make docs) from the classes of the same names in rota.client: change those instead.

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, Literal, Self, TypeAlias, Unpack

from rota.client.clock import LoopLag
from rota.client.connect_worker import ConfigOffset, WorkShared
from rota.client.consumer_protocol import Partitions, _Counts
from rota.client.election import Outcome
from rota.client.errors import CoordinatorError
from rota.client.events import Assigned, MemberEvent
from rota.client.member import Share
from rota.client.options import (
    DRAIN_GRANT_S,
    PREEMPT_AFTER_S,
    RETRY_TIMEOUT_S,
    RETURN_DELAY_S,
    REVOKE_DRAIN_S,
    STOP_DRAIN_S,
    TOPICS_REFRESH_S,
    ConsumerOptions,
    MemberOptions,
    SessionOptions,
)
from rota.client.roles import Generation, Protocols, Without
from rota.client.stats import ClientStats
from rota.client.term import Leadership
from rota.client.topics import Topics
from rota.client.transports.port import GroupEvent
from rota.core.assignors import TopicPartition
from rota.core.assignors.work import WorkItem
from rota.core.types.plan import PlannedRebalance
from rota.credentials import Credentials
from rota.protocol.messages import (
    DescribeReply,
    DrainReply,
    FenceReply,
    FetchedOffset,
    ListedGroup,
    ListedTopic,
    OffsetToCommit,
    QuarantineReply,
    TopicPartitions,
    TopicReply,
)

__all__ = [
    "Client",
    "ConnectWorker",
    "Consumer",
    "Election",
    "Event",
    "FinalSignal",
    "Member",
    "Permit",
    "Permits",
    "Shard",
    "Term",
    "WorkerPool",
    "connect",
]

Listener: TypeAlias = Callable[..., None]

PartitionCounts: TypeAlias = _Counts | Callable[[Sequence[str]], _Counts]

Work: TypeAlias = Callable[[Shard], None]

Configured: TypeAlias = Collection[WorkItem] | Callable[[], Collection[WorkItem]]

Assignments: TypeAlias = Mapping[str, bytes]

Assign: TypeAlias = Callable[[Generation], Assignments]

Committed: TypeAlias = Callable[[Sequence[OffsetToCommit], CoordinatorError | None], None]

def connect(
    url: str | Sequence[str],
    namespace: str = "default",
    *,
    client_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    retry_timeout: float = RETRY_TIMEOUT_S,
    heartbeat_thread: bool = False,
    direct: bool = False,
    retry_refusals: bool = True,
) -> Client:
    """Create a client of the coordinator at `url`, for a `with` block. No request is sent yet.

    The URL's scheme is the transport: `http` and `https`; `grpc` and `grpcs` (with TLS) for one rpc per call;
    `grpc+stream` and `grpcs+stream` for one stream that all members share, on which the server pushes rebalances. With
    `?leave_after_ms=500` the members leave that long after their stream is lost. gRPC needs `pip install 'rota[grpc]'`.

    Args:
        url: The coordinator's address; several addresses of one scheme are tried in turn. A member's calls go directly
            to the owner of its group; with `leave_after_ms` they stay on one stream.
        namespace: The tenant of the groups and topics.
        client_id: A name for people; member ids begin with it. The default is the name of this machine.
        headers: Sent with every request.
        credentials: A token and certificates, or the files that hold them; missing values come from `ROTA_TOKEN`,
            `ROTA_TOKEN_FILE`, `ROTA_CA_FILE`, `ROTA_CERT_FILE` and `ROTA_KEY_FILE`.
        retry_timeout: Maximum time for retries of calls of no member while no server answers.
        heartbeat_thread: Send heartbeats from a separate thread while the event loop is blocked. Set
            `max_processing_interval`, too, to detect work without progress.
        direct: Call the owner of a group directly also at an advertised address that is not listed (`rota serve
            --advertise`). Otherwise another replica forwards the call. The ports of workers on a listed host are used
            in any case.
        retry_refusals: Whether members retry when their token or permission is rejected, until an operator fixes it:
            `trouble` names the cause, the share is lost at its deadline, and a token's file is read again. If False,
            the membership ends with `AccessDenied`.

    Raises:
        ValueError: An address is no URL of these schemes, or the addresses have different schemes.
        TypeError: `url` is not one or several strings, or `credentials` has another type.
    """

class Event:
    """As a `threading.Event`."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, *, timeout: float | None = None) -> bool:
        """Wait for it to be set; `TimeoutError` after so many seconds."""

class Client:
    """Sends calls for one namespace over one transport, which it closes: use a `with` block, or `start` and
    `close`.
    """

    namespace: str

    client_id: str

    stats: ClientStats
    """The counters of this client and its members: `rota.adapters.prometheus` and `.opentelemetry` export them."""

    lag: LoopLag
    """Lag of this client's event loop: a blocked loop sends no heartbeats."""

    def start(self) -> None:
        """Enter, as a block does, for clients that live in an object or a fixture; `close` is the counterpart."""

    def close(self) -> None:
        """Close the members that are still open, in order, and then the connections. A second call has no effect."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def leader(
        self,
        name: str,
        *,
        metadata: bytes = b"",
        priority: int = 0,
        preempt_after: float | None = PREEMPT_AFTER_S,
        **options: Unpack[MemberOptions],
    ) -> Election:
        """Create a candidate in the election `name`, which is a group: it has at most one leader at a time.

        Args:
            name: The group of the candidates.
            metadata: Data that others may read, such as an address. The next two arguments are added to a JSON object;
                with other bytes, this candidate leads until it leaves.
            priority: The candidate of the highest priority leads. A leader of lower priority hands over in order: its
                body ends first. See docs/how-to/operate-a-group.md.
            preempt_after: The time for which this candidate must outrank a leader before that one hands over; None: it
                leads only if there is no leader.
            options: See `MemberOptions`.
        """

    def permits(
        self,
        name: str,
        permits: int,
        *,
        wait_timeout: float | None = None,
        on_lost: Listener | None = None,
        **options: Unpack[SessionOptions],
    ) -> Permits:
        """Create a holder of one of N permits; at most N members hold them at a time. Each permit has its own fencing
        token.

        Args:
            name: The group of the members that hold a permit or wait for one.
            permits: N, 1 to 1,000,000. If members disagree, the lowest counts, but no granted permit is revoked.
            wait_timeout: Maximum time to wait for a permit; by default no maximum.
            on_lost: `on_lost(permit)` is called when the permit is lost, and not when it is released.
            options: See `SessionOptions`. With a `group_instance_id`, a process that restarts within the session gets
                its permit again, with a higher token.
        """

    def lock(
        self,
        name: str,
        *,
        wait_timeout: float | None = None,
        on_lost: Listener | None = None,
        **options: Unpack[SessionOptions],
    ) -> Permits:
        """Create a lock with a fencing token: `permits` with one permit. The arguments are those of `permits`."""

    def consumer(
        self,
        group_id: str,
        topics: Topics,
        strategy: str | Sequence[str] = "cooperative-sticky",
        *,
        partitions_per_topic: PartitionCounts | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Create a member that shares the partitions of topics with the other members of its group.

        Args:
            group_id: The group; its first member creates it.
            topics: A name, several, or a compiled regular expression that matches whole names of registered topics. A
                mapping also has the number of partitions of each topic.
            strategy: One of `rota.core.assignors.STRATEGIES`, with options, or your own (`register_strategy`, or an
                installed package's). With `cooperative-sticky` partitions that do not move never pause. With the prefix
                `server:` the coordinator assigns, so that the group may have members that only use HTTP. Several, the
                preferred one first, allow a change while running.
            partitions_per_topic: The counts (or `TopicFacts`), or a function that the leader calls. Without it, and
                without a mapping in `topics`, the counts and the attributes `racks` and `weights` of the registered
                topics are used.
            on_assigned: As in `member`; partitions that this member keeps are not in `added`.
            on_revoked: As in `member`.
            on_lost: As in `member`.
            options: See `ConsumerOptions`.
        """

    def worker_pool(
        self,
        group_id: str,
        topics: Topics,
        work: Work,
        strategy: str | Sequence[str] = "cooperative-sticky",
        *,
        drain_timeout: float = REVOKE_DRAIN_S,
        partitions_per_topic: PartitionCounts | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> WorkerPool:
        """Create a pool that runs `work(shard)` for each partition while this process holds it.

        Args:
            group_id: As in `consumer`.
            topics: The shards, as partitions of topics.
            work: A function that works on one `Shard`. It is cancelled when the shard is revoked or lost; a
                thread checks `shard.is_held` or waits for `shard.stopping`.
            strategy: As in `consumer`.
            drain_timeout: Time between `shard.stopping` and the cancellation of the work.
            partitions_per_topic: As in `consumer`.
            options: See `ConsumerOptions`.
        """

    def connect_worker(
        self,
        group_id: str,
        configured: Configured | None = None,
        *,
        connectors: str | Sequence[str] = (),
        url: str = "",
        config_offset: ConfigOffset | None = None,
        protocols: str | Sequence[str] = "incremental",
        scheduled_rebalance_max_delay: float = RETURN_DELAY_S,
        refresh_interval: float = TOPICS_REFRESH_S,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        **options: Unpack[MemberOptions],
    ) -> ConnectWorker:
        """Create a worker that shares connectors and tasks with others, as Kafka Connect's workers do.

        Args:
            group_id: The group; its first member creates it.
            configured: All connectors and tasks (`rota.core.assignors.work.WorkItem`), or a function that the leader
                calls.
            connectors: Instead of `configured`: names of registered topics, or their prefixes (`orders-*`). The server
                assigns these connectors, with their partitions as tasks, so that workers in any language may join.
            url: The name that identifies this worker when it returns, if it is no static member.
            config_offset: This worker's position in its configuration, or a function that returns it. A leader that has
                not read as far as another worker waits for a moment, and then fails the generation.
            protocols: `incremental`, `eager`, or both, the preferred one first, to change while running: the group uses
                one that all its workers list. With `eager`, every worker stops all its work before it joins.
            scheduled_rebalance_max_delay: Time for which the work of a worker that has left waits for its return.
            refresh_interval: Interval at which the leader checks for changes, if `configured` is a function.
            on_assigned: As in `member`; work that this member keeps is not in `added`.
            on_revoked: As in `member`.
            on_lost: As in `member`.
            options: See `MemberOptions`. A `group_instance_id` identifies this worker.
        """

    def member(
        self,
        group_id: str,
        *,
        protocol_type: str,
        protocols: Protocols,
        assign: Assign | None = None,
        without: Without | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        **options: Unpack[MemberOptions],
    ) -> Member[bytes]:
        """Create a member of any kind of group, with metadata and assignments in the user's own bytes.

        Args:
            group_id: The group; its first member creates it.
            protocol_type: The kind of the group; all members must have the same.
            protocols: Metadata by protocol name, the preferred one first; or a function that returns it, called before
                each join (`rejoin` makes the member join again); see `rota.client.Protocols`.
            assign: Called when this member leads; see `rota.client.Assign`. Not needed if the server assigns by each of
                the protocols (`server:...`).
            without: Makes the member cooperative: it keeps its assignment while it joins, and its callbacks get only
                added and removed parts; see `rota.client.Without`. Its metadata must list its share, and `assign` must
                not assign a part to another member while it is held: the holder revokes it and joins again. It cannot
                be static: after a restart in between, no member would join again.
            on_assigned: `on_assigned(added, all)` starts work and returns soon. Each of the three
                callbacks is called with `deadline`, if it has such a parameter.
            on_revoked: `on_revoked(removed)` stops work and commits; it is awaited.
            on_lost: `on_lost(removed)` stops work at once, without a commit, if it is too late to revoke in order.
            options: See `MemberOptions`.
        """

    def list_groups(
        self,
        *,
        states: Sequence[str] = (),
        protocol_types: Sequence[str] = (),
        topic: str = "",
    ) -> list[ListedGroup]:
        """List all groups of the namespace, or those in these states and of these protocol types.

        With `topic`, list only groups with a member that subscribes to it, by name or by a pattern.
        """

    def describe_group(self, group_id: str) -> DescribeReply:
        """Describe a group's current state; raise `NotFound` if there is no such group."""

    def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, with its offsets; raise `InvalidRequest` if it has members."""

    def rebalance_group(self, group_id: str, reason: str = "", *, step_down: bool = False) -> None:
        """Start a rebalance, for administrators. With `step_down` another member leads, if one joins."""

    def freeze_group(self, group_id: str, duration: float, reason: str = "") -> float | None:
        """Delay rebalances for `duration` seconds: new members, changes of topics and candidates of a higher priority
        wait; members that leave or expire do not. For administrators; 0 ends a freeze.

        Returns the end in seconds since 1970, by the coordinator's clock; None if the group is not frozen.
        """

    def quarantine_group(
        self,
        group_id: str,
        *,
        after_falls: int | None = None,
        max_units: int | None = None,
        release_after: float | None = None,
        release: Sequence[str] = (),
        reason: str = "",
    ) -> QuarantineReply:
        """Set when units whose holders fail are excluded from assignments, and release units. For administrators;
        omitted values are unchanged.

        Args:
            group_id: The group.
            after_falls: The number of consecutive holders that must fail; 0 disables the quarantine.
            max_units: Maximum number of quarantined units.
            release_after: Duration of a quarantine; 0: until the unit is released.
            release: Quarantined units to release, such as `docs/3`.
            reason: The reason, for people and the journal.
        """

    def drain_member(
        self,
        group_id: str,
        member_id: str = "",
        *,
        group_instance_id: str | None = None,
        max_leaving: int = 1,
        grant_duration: float = DRAIN_GRANT_S,
        reason: str = "",
    ) -> DrainReply:
        """Ask whether this member may leave now: `granted` if fewer than `max_leaving` members have a permission and
        the group is Stable and not frozen; else `why_not`. The member itself leaves later.

        Args:
            group_id: The group.
            member_id: The member that will leave.
            group_instance_id: Identifies a static member, instead of `member_id`.
            max_leaving: Maximum number of members that leave at once, this one included.
            grant_duration: Duration of the permission, unless the member leaves earlier.
            reason: The reason, for people and the journal.
        """

    def plan_group(
        self,
        group_id: str,
        *,
        without: Sequence[str] = (),
        more_members: int = 0,
        partitions: Mapping[str, int] | None = None,
        strategy: str = "",
    ) -> PlannedRebalance:
        """Simulate a rebalance of a `consumer` group under a hypothesis. The group does not change.

        The reply has each member before and after, the partitions that move, and those on which members pause.

        Args:
            group_id: A group that is Stable.
            without: Members that leave, given by member id or instance id.
            more_members: Number of members that join, with the most common subscription.
            partitions: Changed partition counts, by topic.
            strategy: A strategy to use instead of the group's.

        Raises:
            InvalidRequest: The hypothesis does not fit the group; the detail names the field.
            RebalanceInProgress: The group is not Stable.
        """

    def remove_member(self, group_id: str, member_id: str, reason: str = "") -> None:
        """Remove a member from its group, for administrators; raise `MembershipLost` if there is no such member."""

    def offsets(self, group_id: str) -> tuple[FetchedOffset, ...]:
        """Return all committed offsets of a group."""

    def set_offsets(self, group_id: str, offsets: Sequence[OffsetToCommit]) -> None:
        """Set the offsets at which a group continues, for administrators. The group must have no members; it is created
        if needed.

        Raises:
            MembershipLost: The group has members: only they commit.
            InvalidRequest: The metadata of the partitions in the detail is too long; all other offsets were committed.
        """

    def delete_offsets(self, group_id: str, partitions: Mapping[str, Sequence[int]]) -> None:
        """Delete a group's committed offsets for these partitions, by topic, also for partitions without one."""

    def watch(self, group_id: str, after_revision: int | Literal["earliest"] | None = None) -> Iterator[GroupEvent]:
        """Yield a group's journal without end: events after `after_revision` (None: from now on), then live events.

        `"earliest"` starts with the first remaining event; 0 requires the whole journal. While the coordinator is
        unavailable this waits, and misses no event after `after_revision`, or after the last event.

        Raises:
            RevisionOutOfRange: The next events are pruned, or the store has lost the event to continue after.
        """

    def topics(self) -> list[ListedTopic]:
        """Return all registered topics with their partition counts."""

    def topic(self, topic: str) -> TopicReply:
        """Return one registered topic; raise `NotFound` if it is not registered."""

    def watch_topic(self, topic: str) -> Iterator[TopicReply | None]:
        """Yield a topic's current state, and each later change, without end; None while it is not registered.

        Of several changes at once, only the last is reported. While the coordinator is unavailable this waits.
        """

    def put_topic(self, topic: str, partitions: int, attributes: Mapping[str, str] | None = None) -> TopicReply:
        """Register a topic, or add partitions; raise `InvalidRequest` if it would shrink. Attributes replace the former
        ones.

        Strategies read two of them: `weights` (`"3,1,1"`: of partition 0, 1, …) and `racks` (`"r1,r1+r2,r2"`: the
        location of each one's data).
        """

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with the progress of all groups in it; raise `NotFound` if it is not registered.

        A new topic of this name starts without progress.
        """

class Member(Generic[Share]):
    """A membership for a `with` block, or from `start` to `close`.

    Leaving the block is two-phase: `on_revoked` finishes first, then the group is left. If the coordinator refuses
    this member for good (`FencedInstanceId`, `InvalidRequest`, …) or a callback raises, the block is
    cancelled and that error comes out of it, unless the body raises one of its own.

    `Share` is the user's form of an assignment, which the role reads from it.
    """

    @property
    def namespace(self) -> str: ...
    @property
    def group_id(self) -> str: ...
    @property
    def member_id(self) -> str:
        """The id that the coordinator assigned; empty before the first answer."""

    @property
    def generation_id(self) -> int:
        """The generation; -1 outside of one. Resources should compare `fencing_token` instead."""

    @property
    def fencing_token(self) -> int:
        """The fencing token; -1 outside of a generation. The next process with this `group_instance_id` gets a higher
        one.
        """

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its generation."""

    @property
    def assignment(self) -> Share | None:
        """The share that this member may use now, by the clock, also after a blocked event loop or a sleeping machine;
        None without one. Any thread may ask.
        """

    @property
    def valid_until(self) -> float | None:
        """The end of `assignment` unless it is renewed, in seconds of the event loop's clock; None without a share.

        Always earlier than the moment from which the coordinator may give it to another member.
        """

    @property
    def unreachable_since(self) -> float | None:
        """Start of an outage after a failed heartbeat; None while answers arrive. Unreachable does not mean lost."""

    @property
    def trouble(self) -> str:
        """Why this member's calls have not been served for more than a second; empty while they are."""

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    @property
    def is_over(self) -> bool:
        """Whether this member was closed, or has failed."""

    def wait_assigned(self, *, timeout: float | None = None) -> Assigned[Share]:
        """Return as soon as this member has an assignment, which may be empty.

        Raises:
            MembershipLost: The member was closed during the wait.
            CoordinatorError: The coordinator refuses this member for good.
            RuntimeError: The block was not entered.
        """

    def events(self) -> Iterator[MemberEvent[Share]]:
        """Yield this member's events, starting with its current share. Use them to observe; callbacks stop the work."""

    def commit(self, offsets: Iterable[OffsetToCommit]) -> None:
        """Commit progress, fenced by the current generation.

        Commits are sent in the order of the calls, even if the caller is cancelled. They are repeated while the
        coordinator cannot be reached, and after a resync or a cooperative rebalance in which this member kept its
        share.

        As in Kafka, the fence is the generation, not the assignment: commit only what is in `assignment`.

        Raises:
            MembershipLost: The member has no share, or the generation is over: no offset was committed.
            RebalanceInProgress: The group is between two generations: no offset was committed.
            CoordinatorUnreachable: The outcome is unknown, and the share is lost.
            InvalidRequest: A coordinator never accepts one of the offsets: no offset was committed. With the code
                `OFFSET_METADATA_TOO_LARGE` the partitions in the detail were not committed, but all others were.
        """

    def fetch_offsets(self, topics: Sequence[TopicPartitions] | None = None) -> tuple[FetchedOffset, ...]:
        """Return the group's committed offsets; an offset of -1 means no commit."""

    def verify_fence(self) -> FenceReply:
        """Ask the coordinator whether this member's generation is still the current one.

        Raises:
            MembershipLost: It is not, or the member has no share.
        """

    def signed_token(self) -> str:
        """Return a signed proof that this member is in the current generation, for services that check it offline.

        It is valid for about a minute (`fence_token_ttl_ms`). `rota.fencing.tokens.Fence` checks it.

        Raises:
            MembershipLost: The generation is over, or the member has no share.
            InvalidRequest: The server has no keys to sign with.
        """

    def rejoin(self, reason: str) -> None:
        """As the leader, start a rebalance; otherwise join again. Any thread and any callback may call it."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def run(self, *, drain_timeout: float = STOP_DRAIN_S, handle_signals: bool = True) -> None:
        """Run the member until a signal, `stop` or cancellation; inside or outside of the block.

        SIGTERM and SIGINT stop in order, unless the program handles them: `on_revoked` is awaited for `drain_timeout`,
        and the group is left. A second signal cancels. This returns at most 2.5 s after that time.
        """

    def step_aside(self, reason: str) -> None:
        """Stop work in order and leave the group until `come_back`, which joins again as a new member.

        In a callback it returns at once, and the member steps aside when its callbacks have returned.
        """

    def come_back(self) -> None:
        """Join again after stepping aside; if leaving is still in progress, right after it."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the counterpart and raises an error that has ended it meanwhile."""

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Stop work in order, commit and leave; may be called inside of a `with` block.

        After `timeout` seconds work is cancelled, `on_lost` is called if a callback has not returned, and the group is
        left. This returns at most 2.5 s later, in every state of the coordinator and of the work; in a callback or in
        work of a pool it returns at once.
        """

    def stop(self) -> None:
        """End `run` as the first SIGTERM does; a second call acts as a second signal. Any thread and signal handler may
        call it.
        """

class Consumer(Member[Partitions]):
    """A `Member` with a share of the partitions of topics.

    `commit` an offset at once, or `store` it: the consumer commits stored offsets every `auto_commit_interval`, and
    after `on_revoked` when partitions are revoked or the consumer is closed.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def trouble(self) -> str:
        """The trouble as in `Member.trouble`; else topics that are named but not registered, or the trouble of a pool's
        shard.
        """

    def owns(self, place: TopicPartition) -> bool:
        """Return whether this member owns a partition now, by the clock; one in revocation is still owned. Any thread
        may ask.
        """

    def assignments(self) -> Iterator[Assigned[Partitions]]:
        """Yield the current assignment and each later one. Requesting the next one counts as progress."""

    def progress(self) -> None:
        """Report that work continues, as `store` and `commit` do. A member that released its share joins its group
        again.
        """

    def store(
        self,
        topic: str,
        partition: int,
        offset: int,
        metadata: str = "",
        retention_time: float | None = None,
    ) -> None:
        """Store that everything before `offset` is done. It is committed when the partition is revoked, at the latest.

        `retention_time` seconds after that commit the offset may expire; without it, the server's retention applies.

        Raises:
            MembershipLost: This member does not hold the partition (any more).
            InvalidRequest: A coordinator never accepts the offset or its metadata; it is not stored.
        """

    def commit(self, offsets: Iterable[OffsetToCommit] | None = None) -> None:
        """Commit as `Member.commit` does; without offsets, everything that is stored."""

    def commit_soon(self, offsets: Iterable[OffsetToCommit] | None = None, then: Committed | None = None) -> None:
        """Commit in the background, in the order of the calls, before partitions are revoked and before leaving.

        `then` is called with the outcome, also in that order; without it, a failure is logged.

        Raises:
            InvalidRequest: A coordinator never accepts one of the offsets; no offset is committed.
        """

    def committed(self) -> dict[TopicPartition, int]:
        """Return the group's progress in the partitions of this member; 0 if no offset was committed yet."""

    @property
    def subscription(self) -> tuple[str, ...]:
        """The topics that this member subscribes to; for a pattern, those that match now."""

    def subscribe(self, topics: Topics) -> None:
        """Change the subscription. Topics that it no longer contains are revoked, and the group rebalances.

        The source of partition counts stays the same: a mapping's counts are added to the initial ones.
        """

class ConnectWorker(Member[WorkShared]):
    """A `Member` with a share of connectors and tasks.

    Kept work continues while the group rebalances. Work that moves is revoked first and assigned in a second round.
    Progress of a task is committed with the connector as the topic and the task as the partition.
    """

    @property
    def config_offset(self) -> int:
        """The configuration position from which this worker's share was assigned; -1 if workers report none.

        Read your configuration up to it before you start the work that `on_assigned` adds.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Election:
    """A candidacy, for the time of a `with` block, or from `start` to `close`.

        with client.leader("billing-writer") as election:
            election.run(write)          # calls write(term) in each term; cancelled when the term is lost

    `terms` yields the terms instead. Leaving the block ends the body first, then the leadership, so another candidate
    leads at once.
    """

    member: Member[Leadership]
    """The candidate's membership, for calls that do not concern leading."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def term(self) -> Term | None:
        """The current term; None while this candidate does not lead. Any thread may ask."""

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now, by the clock. Any thread may ask."""

    @property
    def valid_until(self) -> float | None:
        """The expiry of the known state: of this candidate's term, or of another candidate's lead."""

    @property
    def unreachable_since(self) -> float | None:
        """The time since which the coordinator is unreachable: see `Member.unreachable_since`."""

    @property
    def trouble(self) -> str:
        """Why calls are not served now: see `Member.trouble`."""

    @property
    def failure(self) -> BaseException | None:
        """With `run(retry=True)`, the work's last exception; None after it has run well for half a minute."""

    def terms(self) -> Iterator[Term]:
        """Yield each term when it starts. The next one follows after the former has ended."""

    def run(
        self,
        work: Callable[[Term], Outcome],
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        retry: bool = False,
    ) -> Outcome | None:
        """Wait to be elected and call `work(term)` in each term, until it returns or raises. Returning resigns: this
        candidate does not campaign again until `run` is called again.

        SIGTERM and SIGINT end it in order, unless the program handles them: `term.stopping` is set, the work is
        cancelled (after `drain_timeout` if it reads `term.stopping`), the group is left, and None is returned. A second
        signal cancels at once. This returns at most 2.5 s after `drain_timeout`, even if the work ignores its
        cancellation.

        Args:
            work: A function that works while this candidate leads.
            drain_timeout: Time for work that reads `term.stopping`, after a signal or a request to hand over.
            handle_signals: Whether SIGTERM and SIGINT are handled here.
            retry: If `work` raises, campaign again after a growing pause instead of raising; see `failure`.

        Raises:
            LeadershipLost: The block was left during the run.
            TypeError: `work` is no async function.
            RuntimeError: The election was closed, or its `run` is already running.
        """

    def resign(self, reason: str = "resigned", *, pause: float = 0.0) -> None:
        """End the term in order, let another candidate lead, and campaign again after `pause`, last in the queue.

        If the term's own body calls this, the body is cancelled here. The resignation completes even if the caller is
        cancelled.
        """

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the counterpart and raises an error that has ended it meanwhile."""

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Stop work in order, commit and leave; may be called inside of a `with` block.

        After `timeout` seconds work is cancelled, `on_lost` is called if a callback has not returned, and the group is
        left. This returns at most 2.5 s later, in every state of the coordinator and of the work; in a callback or in
        work of a pool it returns at once.
        """

    def stop(self) -> None:
        """End `run` as the first SIGTERM does; a second call acts as a second signal. Any thread and signal handler may
        call it.
        """

class Term:
    """A term as leader. As a `with` block it cancels its body when it is over, and raises `LeadershipLost`.

    Several tasks may be in its block at once: all are cancelled. A term continues while other candidates join and
    leave; `fencing_token` then grows, and never decreases.
    """

    lost: FinalSignal
    """Set once this term is over, for any reason: wait for it, or check `is_valid`."""

    reason: str
    """Why the term is over."""

    @property
    def fencing_token(self) -> int:
        """The fencing token: send it to the resources to which you write, and let them reject older ones."""

    @property
    def stopping(self) -> FinalSignal:
        """Set when the work should end, while the term may still be valid; never later than `lost`. Work that has read
        it is drained, other work is cancelled at once.
        """

    @property
    def valid_until(self) -> float | None:
        """The end of this term unless it is renewed, in seconds of the event loop's clock; None once it is over.

        Always earlier than the time from which the coordinator may let another member lead.
        """

    @property
    def is_valid(self) -> bool:
        """Whether this candidate leads now, by the clock, also right after a blocked event loop. Any thread may ask."""

    def raise_if_lost(self) -> None:
        """Raise `LeadershipLost` unless the term is valid now. Call it before an action that must not be done twice.
        Any thread may call it.
        """

    def verify(self) -> FenceReply:
        """Ask the coordinator whether this term's generation is the current one; raise `LeadershipLost` if not."""

    def signed_token(self) -> str:
        """Return a signed proof of this term's generation, for services that check it offline; raise `LeadershipLost`
        if it is over.

        It is valid for about a minute: request another when it has expired.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Permits:
    """A permit for a `with` block, or from `start` to `close`; entering waits until it is granted.

        with client.permits("downloads", 3) as permit:
            download(permit.number, permit.fencing_token)   # cancelled when the permit is lost

    `client.lock(name)` is the same with one permit. If the permit is lost, the block raises `PermitLost`; its end
    releases the permit to the member that has waited longest. `run` acquires permits repeatedly.
    """

    def __enter__(self) -> Permit: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def permit(self) -> Permit:
        """The permit that this holds, or held; raises RuntimeError before a permit is granted."""

    @property
    def of(self) -> int:
        """The number of permits of the group: the lowest that a member asks for. 0 before the first answer."""

    @property
    def place(self) -> int:
        """The position in the queue: 1 gets the next permit; 0 with a permit."""

    def run(
        self,
        work: Callable[[Permit], Outcome],
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        retry: bool = False,
    ) -> Outcome | None:
        """Wait for a permit and call `work(permit)` with each permit, until it returns or raises. Use this instead of
        the block. Arguments, signals and errors are those of `Election.run`, with `PermitLost`; `wait_timeout` does not
        count.
        """

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Release the permit, or stop waiting for one. A body that calls this continues without the permit; one of
        another task is cancelled.
        """

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the counterpart and raises an error that has ended it meanwhile."""

    def stop(self) -> None:
        """End `run` as the first SIGTERM does; a second call acts as a second signal. Any thread and signal handler may
        call it.
        """

class Permit(Term):
    """A granted permit; as a `with` block, it cancels its body if the permit is lost, and raises `PermitLost`.

    The permit, its number and its token do not change when other members join or leave.
    """

    @property
    def number(self) -> int:
        """The number of the permit: 0 to N - 1. A fenced system stores the highest token for each number."""

    @property
    def fencing_token(self) -> int:
        """The fencing token: greater than all earlier ones of this permit, and the same until the permit is over."""

    @property
    def is_valid(self) -> bool:
        """Whether the permit is held now, by the clock, also right after a blocked event loop. Any thread may ask."""

class WorkerPool:
    """Runs `work(shard)` for each shard that this process holds, during a `with` block, from `start` to `close`,
    or during `run`.

    When a shard is revoked, `shard.stopping` is set, and the task is cancelled, after `drain_timeout` if it has read
    that. Other members get the shard after the task has ended. The task of a lost shard is cancelled at once. If `work`
    raises, all other work stops in order, progress is committed, and the block ends with that error; `run(retry=True)`
    retries that shard. A group with a quarantine excludes a shard that fails repeatedly.
    """

    consumer: Consumer
    """The membership below the pool, for calls that do not concern shards."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def shards(self) -> tuple[TopicPartition, ...]:
        """The shards that this process holds now. Any thread may ask."""

    @property
    def trouble(self) -> str:
        """The trouble as in `Member.trouble`; else a shard whose work is silent, or raised and is retried."""

    def run(
        self,
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        until_done: bool = False,
        retry: bool = False,
    ) -> None:
        """Work until a signal, `stop` or cancellation; inside or outside of the block.

        SIGTERM and SIGINT end it in order, unless the program handles them: `shard.stopping` is set, work is cancelled
        (after `drain_timeout` if it reads that), progress is committed, and the group is left. A second signal cancels
        at once. This returns at most 2.5 s after `drain_timeout`, even if the work ignores its cancellation.

        Args:
            drain_timeout: Time for work that reads `shard.stopping`, after a signal.
            handle_signals: Whether SIGTERM and SIGINT are handled here.
            until_done: Also stop when the work on all held shards has returned; see `wait_done`.
            retry: When `work` raises, call it again for that shard after a pause from 1 to 30 s, while the others
                continue. In a group with a quarantine, each third consecutive failure is reported: the pool leaves, and
                joins again.
        """

    def wait_done(self, *, timeout: float | None = None) -> None:
        """Return when this process has its (perhaps empty) assignment and the work on all its shards has returned.

        Raises:
            MembershipLost: The pool was closed during the wait.
            RuntimeError: The block was not entered.
        """

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the counterpart and raises an error that has ended it meanwhile."""

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Stop work in order, commit and leave; may be called inside of a `with` block.

        After `timeout` seconds work is cancelled, `on_lost` is called if a callback has not returned, and the group is
        left. This returns at most 2.5 s later, in every state of the coordinator and of the work; in a callback or in
        work of a pool it returns at once.
        """

    def stop(self) -> None:
        """End `run` as the first SIGTERM does; a second call acts as a second signal. Any thread and signal handler may
        call it.
        """

class Shard:
    """One partition while this process works on it."""

    topic: str

    partition: int

    promoted: FinalSignal
    """Set when this copy is the active one, initially or later; see `role`."""

    @property
    def role(self) -> str:
        """`active` or `standby`. With strategies such as `redundant(2)`, one of the copies of a partition is active."""

    @property
    def stopping(self) -> FinalSignal:
        """Set when the shard must be released. Work that has read it has `drain_timeout` to end by itself; other work
        is cancelled at once.
        """

    @property
    def fencing_token(self) -> int:
        """The fencing token: send it to the resources to which you write, and let them reject older ones."""

    @property
    def generation_id(self) -> int:
        """The generation: with `member_id`, the argument of `rota.commit_offsets` in a transaction."""

    @property
    def member_id(self) -> str:
        """This process's member id: a fence needs it with the generation or the token."""

    @property
    def valid_until(self) -> float | None:
        """The time of loss unless the shard is renewed, in seconds of the event loop's clock; None once it is."""

    @property
    def is_held(self) -> bool:
        """Whether this process may work on the shard now, by the clock; False after its work was cancelled. Any thread
        may ask.
        """

    def raise_if_lost(self) -> None:
        """Raise `MembershipLost` unless the shard is held now. Call it before an action that must not be done twice.
        Any thread may call it.
        """

    def position(self) -> int:
        """Return where to continue: the group's last commit, or 0. Retried as long as the shard is held."""

    def commit(self, offset: int, metadata: str = "", retention_time: float | None = None) -> None:
        """Commit that everything before `offset` is done; raise `MembershipLost` if another member has the shard now.

        `retention_time` seconds later the offset may expire; without it, the server's retention applies.
        """

    def store(self, offset: int, metadata: str = "", retention_time: float | None = None) -> None:
        """Store that everything before `offset` is done. The pool commits it every `auto_commit_interval`, when the
        shard is revoked, when the pool is closed, and when work raises. `retention_time`: as in `commit`.
        """

    def progress(self) -> None:
        """Report that work on this shard continues, as `store` and `commit` do. See `max_processing_interval`."""

class FinalSignal(Event):
    """An `asyncio.Event` for which threads may also wait: `signal.wait()`, or `signal.wait_in_thread(1.0)`.

    `is_set` may be called from any thread.
    """

    def set(self) -> None:
        """Wake all waiting tasks and threads. Must be called on the event loop."""

    def clear(self) -> None:
        """Raise: a set signal stays set."""

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Wait in a thread without an event loop for at most `timeout` seconds; return whether the signal is set."""
