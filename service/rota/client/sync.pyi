# Written by docs/generate.py (make docs) from the classes of the same names in rota.client: change those instead.

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, Literal, Self, TypeAlias, Unpack

from rota.assignors import TopicPartition
from rota.assignors.work import WorkItem
from rota.client.connect_worker import ConfigOffset, WorkShared
from rota.client.consumer_protocol import Partitions, _Counts
from rota.client.election import Outcome
from rota.client.errors import CoordinatorError
from rota.client.events import Assigned, MemberEvent
from rota.client.lag import LoopLag
from rota.client.member import Share
from rota.client.options import ConsumerOptions, MemberOptions, SessionOptions
from rota.client.roles import Generation, Protocols, Without
from rota.client.seconds import (
    DRAIN_GRANT_S,
    PREEMPT_AFTER_S,
    RETRY_TIMEOUT_S,
    RETURN_DELAY_S,
    REVOKE_DRAIN_S,
    STOP_DRAIN_S,
    TOPICS_REFRESH_S,
)
from rota.client.stats import ClientStats
from rota.client.term import Leadership
from rota.client.topics import Topics
from rota.client.transports.port import GroupEvent
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
from rota.types.plan import PlannedRebalance

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
    """A client of the coordinator at `url`, for the time of a `with` block. Nothing is sent yet.

    The URL's scheme is the transport: `http` and `https`; `grpc` and `grpcs` (with TLS) for one rpc per call;
    `grpc+stream` and `grpcs+stream` for one stream that all members share, on which they learn of a rebalance
    without asking. With `?leave_after_ms=500` a lost stream counts as leaving after so long. gRPC needs
    `pip install 'rota[grpc]'`.

    Args:
        url: The coordinator's address; several, of one scheme, are tried in turn. A member's calls go straight to the
            owner of its group. With `leave_after_ms` they stay on one stream.
        namespace: The tenant of the groups and topics.
        client_id: A name for people; member ids begin with it. By default the name of this machine.
        headers: Sent with every request.
        credentials: A token and certificates, or the files that hold them; missing values come from `ROTA_TOKEN`,
            `ROTA_TOKEN_FILE`, `ROTA_CA_FILE`, `ROTA_CERT_FILE` and `ROTA_KEY_FILE`.
        retry_timeout: How long calls that are not a member's are retried while no server answers.
        heartbeat_thread: Send heartbeats from a thread of its own while the event loop is blocked. Set
            `max_processing_interval`, too, to detect work without progress.
        direct: Go straight to the owner of a group also at an advertised address that is not listed (`rota serve
            --advertise`). Otherwise another replica forwards the call. The ports of workers on a listed host are used
            in any case.
        retry_refusals: Members whose token or permission is rejected try again until an operator has fixed that:
            `trouble` names it, their share is lost at its deadline, and a token's file is read again. False: the
            membership ends with `AccessDenied`.

    Raises:
        ValueError: An address is no URL of these schemes, or they have several.
        TypeError: `url` is neither a string nor several, or `credentials` are none.
    """

class Event:
    """As a `threading.Event`."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, *, timeout: float | None = None) -> bool:
        """Wait for it to be set; `TimeoutError` after so many seconds."""

class Client:
    """Speaks for one namespace over one transport, which it closes: a `with` block, or `start` and `close`."""

    namespace: str

    stats: ClientStats
    """What this client and its members have counted: `rota.adapters.prometheus` and `.opentelemetry` export it."""

    lag: LoopLag
    """How late this client's event loop is: one that is blocked sends no heartbeats."""

    client_id: str

    def start(self) -> None:
        """Enter, as a block does, for clients that live in an object or a fixture; `close` is the other end."""

    def close(self) -> None:
        """Close the members that are still open, in order, and then the connections. To close twice does no harm."""

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
        """A candidate in the election called `name`, which is a group: at most one candidate at a time leads it.

        Args:
            name: The group of the candidates.
            metadata: Data that others may read, such as an address. A JSON object gets the fields of the next two; with
                other bytes, this candidate leads until it leaves.
            priority: The candidate of the highest priority leads. A leader of a lower one hands over in order: its body
                ends first. See docs/how-to/operate-a-group.md.
            preempt_after: For how long this candidate must have outranked a leader before that hands over; None: it
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
        """One of N permits, which are held by at most N members at a time; each has a fencing token of its own.

        Args:
            name: The group of those that hold a permit or wait for one.
            permits: N, 1 to 1,000,000. If members disagree, the lowest counts; it takes no permit away.
            wait_timeout: How long to wait for a permit; by default until one is free.
            on_lost: `on_lost(permit)` is called when the permit is lost, and not when it is given back.
            options: See `SessionOptions`. With a `group_instance_id`, a process that restarts within the session has
                the permit again, with a higher token.
        """

    def lock(
        self,
        name: str,
        *,
        wait_timeout: float | None = None,
        on_lost: Listener | None = None,
        **options: Unpack[SessionOptions],
    ) -> Permits:
        """A lock with a fencing token: `permits` with one permit. The arguments are those of `permits`."""

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
        """A member that shares the partitions of topics with the others of its group.

        Args:
            group_id: The group; it comes to be with its first member.
            topics: A name, several, or a compiled regular expression that matches whole names of registered topics. A
                mapping also has the number of partitions of each topic.
            strategy: One of `rota.assignors.STRATEGIES`, with options, or your own (`register_strategy`, or an
                installed package's). With `cooperative-sticky` partitions that do not move never pause. With `server:`
                before it the coordinator assigns, so members that only speak HTTP may be in the group. Or several, the
                preferred one first, to change while running.
            partitions_per_topic: The counts (or `TopicFacts`), or a function that the leader asks. Without it, and
                without a mapping in `topics`, the registered topics count, with their attributes `racks` and `weights`.
            on_assigned: As in `member`; partitions that this member keeps are not among those added.
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
        """Runs `work(shard)` for each partition that this process holds, as long as it holds it.

        Args:
            group_id: As in `consumer`.
            topics: The shards, as partitions of topics.
            work: A function that works on one `Shard`. It is cancelled when the shard is revoked or lost; a
                thread looks at `shard.is_held` or waits for `shard.stopping`.
            strategy: As in `consumer`.
            drain_timeout: How long work may go on after `shard.stopping` was set, before it is cancelled.
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
        """A worker that shares connectors and tasks with others, as Kafka Connect's do.

        Args:
            group_id: The group; it comes to be with its first member.
            configured: All connectors and tasks (`rota.assignors.work.WorkItem`), or a function that the leader asks.
            connectors: Instead of `configured`: names of registered topics, or their beginnings (`orders-*`). The
                server assigns these connectors, with their partitions as tasks, so that workers in any language may
                take part.
            url: The name by which this worker is recognised when it returns, if it is no static member.
            config_offset: This worker's position in its configuration, or a function that returns it. A leader that has
                not read as far as another worker waits for a moment, and then fails the generation.
            protocols: `incremental`, `eager`, or both, the preferred one first, to change while running: the group uses
                one that all its workers list. While that is `eager`, every worker stops everything before it joins.
            scheduled_rebalance_max_delay: How long a departed worker's work waits for its return.
            refresh_interval: How often the leader looks for other work, if `configured` is a function.
            on_assigned: As in `member`; work that this member keeps is not added again.
            on_revoked: As in `member`.
            on_lost: As in `member`.
            options: See `MemberOptions`. A `group_instance_id` is what this worker is known by.
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
        """A member of any kind of group, with metadata and assignments in the user's own bytes.

        Args:
            group_id: The group; it comes to be with its first member.
            protocol_type: What the group is for; the same for all its members.
            protocols: Metadata by protocol name, the preferred one first; or a function that returns it, called before
                each join (`rejoin` has the member join again); see `rota.client.Protocols`.
            assign: Called when this member leads; see `rota.client.Assign`. Not needed where each protocol is one by
                which the server assigns (`server:...`).
            without: Makes the member cooperative: it keeps its assignment while it joins, and its callbacks get parts
                alone that are added or removed; see `rota.client.Without`. Its metadata must list its share, and
                `assign` must give to no other member what one still holds: that member gives it up and joins again. It
                cannot be static: after a restart in between, no member would join again.
            on_assigned: `on_assigned(added, all)` starts work. Returns soon. Each of the three is
                called with `deadline`, if it has such a parameter.
            on_revoked: `on_revoked(removed)` stops work and commits; it is waited for.
            on_lost: `on_lost(removed)` stops work at once, without a commit, where it is too late to give up in order.
            options: See `MemberOptions`.
        """

    def list_groups(
        self,
        *,
        states: Sequence[str] = (),
        protocol_types: Sequence[str] = (),
        topic: str = "",
    ) -> list[ListedGroup]:
        """All groups of the namespace, or those in these states and of these protocol types.

        With `topic`, only groups with a member that subscribes to it, by name or by a pattern.
        """

    def describe_group(self, group_id: str) -> DescribeReply:
        """A group as it stands; `NotFound` if there is none."""

    def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, with its offsets; `InvalidRequest` otherwise."""

    def rebalance_group(self, group_id: str, reason: str = "", *, step_down: bool = False) -> None:
        """Start a rebalance, for administrators; `step_down`: under another leader, if another member joins."""

    def freeze_group(self, group_id: str, duration: float, reason: str = "") -> float | None:
        """Delay rebalances for `duration` seconds: newcomers, changes of topics and candidates of a higher priority
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
        """Set the rule by which units whose holders fail are left out of assignments, and release units. For
        administrators; values that are not given stay.

        Args:
            group_id: The group.
            after_falls: So many holders of a unit must fall in a row; 0: no unit is quarantined any more.
            max_units: So many units may be quarantined at once.
            release_after: For how long a unit is quarantined; 0: until it is released.
            release: Quarantined units, such as `docs/3`.
            reason: Why, for people and the journal.
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
        """Ask whether this member may leave now: `granted` if fewer than `max_leaving` have a permission and the group
        is Stable and not frozen; `why_not` otherwise. The member leaves by itself.

        Args:
            group_id: The group.
            member_id: The member that is to leave.
            group_instance_id: Instead of `member_id`, of a static member.
            max_leaving: So many may leave at once, this one included.
            grant_duration: For how long the permission counts, unless the member leaves before.
            reason: Why, for people and the journal.
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
        """What a rebalance of a `consumer` group would do under a hypothesis. Nothing of it happens.

        The reply has each member before and after, the partitions that move, and those on which members pause.

        Args:
            group_id: A group that is Stable.
            without: Members that leave, by member id or instance id.
            more_members: So many join, with the subscription that most members have.
            partitions: Topics with other partition counts than they have now, by topic.
            strategy: Another strategy than the group's.

        Raises:
            InvalidRequest: The hypothesis does not fit the group; the detail names the field.
            RebalanceInProgress: The group is not Stable.
        """

    def remove_member(self, group_id: str, member_id: str, reason: str = "") -> None:
        """Remove a member from its group, for administrators; `MembershipLost` if there is none."""

    def offsets(self, group_id: str) -> tuple[FetchedOffset, ...]:
        """All offsets that a group has committed."""

    def set_offsets(self, group_id: str, offsets: Sequence[OffsetToCommit]) -> None:
        """Set where a group goes on, for administrators: only while it has no members; one that is not there is made.

        Raises:
            MembershipLost: The group has members: they commit.
            InvalidRequest: The metadata of the partitions in its detail is too long; all others were committed.
        """

    def delete_offsets(self, group_id: str, partitions: Mapping[str, Sequence[int]]) -> None:
        """Forget what a group has committed for these partitions of topics, by topic; those it never had count, too."""

    def watch(self, group_id: str, after_revision: int | Literal["earliest"] | None = None) -> Iterator[GroupEvent]:
        """A group's journal: lines after `after_revision` (None: from now on), then live, without end.

        `"earliest"` starts with the first line that is left; 0 takes the whole journal or fails. While the coordinator
        is away this waits, and misses no line after `after_revision`, or after the last event.

        Raises:
            RevisionOutOfRange: The next lines are pruned, or the store has lost the line to go on after.
        """

    def topics(self) -> list[ListedTopic]:
        """All registered topics with their partition counts."""

    def topic(self, topic: str) -> TopicReply:
        """One registered topic; `NotFound` if there is none."""

    def watch_topic(self, topic: str) -> Iterator[TopicReply | None]:
        """A topic as it is now, and each time that it is another, without end; None while it is not registered.

        Of several changes at once, the last one is reported. While the coordinator is away this waits.
        """

    def put_topic(self, topic: str, partitions: int, attributes: Mapping[str, str] | None = None) -> TopicReply:
        """Register a topic, or let it grow; `InvalidRequest` if it would shrink. Attributes replace those it had.

        Strategies read two of them: `weights` (`"3,1,1"`: of partition 0, 1, …) and `racks` (`"r1,r1+r2,r2"`: where
        each has its data).
        """

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with the progress of all groups in it; `NotFound` if there is none.

        A new topic of this name begins without progress.
        """

class Member(Generic[Share]):
    """A membership, for the time of a `with` block, or from `start` to `close`.

    Leaving the block is two-phase: `on_revoked` finishes first, then the group is left. If the coordinator refuses
    this member for good (`FencedInstanceId`, `InvalidRequest`, …) or a callback raises, the block is
    cancelled and that error comes out of it, unless the body raises one of its own.

    `Share` is what an assignment means to the user: what its role reads in it.
    """

    @property
    def namespace(self) -> str: ...
    @property
    def group_id(self) -> str: ...
    @property
    def member_id(self) -> str:
        """Given by the coordinator; empty before the first answer."""

    @property
    def generation_id(self) -> int:
        """The generation; -1 while in none. What you write to compares `fencing_token` instead."""

    @property
    def fencing_token(self) -> int:
        """The fencing token, -1 in no generation. The next process with this `group_instance_id` gets a higher one."""

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the generation that it is in."""

    @property
    def assignment(self) -> Share | None:
        """What this member may act on now, by the clock, also after a blocked event loop or a sleeping machine; None if
        nothing. Any thread may ask.
        """

    @property
    def valid_until(self) -> float | None:
        """When `assignment` ends unless it is renewed, in seconds of the event loop's clock; None if nothing is held.

        Always earlier than the moment from which the coordinator may give it to another member.
        """

    @property
    def unreachable_since(self) -> float | None:
        """Since when no answer came, once that cost a heartbeat; None while they come. Unreachable is not lost."""

    @property
    def trouble(self) -> str:
        """Why this member's calls are not served now, once that has lasted a second; empty while they are."""

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    @property
    def is_over(self) -> bool:
        """Whether this member was closed, or has failed."""

    def wait_assigned(self, *, timeout: float | None = None) -> Assigned[Share]:
        """Return as soon as this member holds something (which may be nothing at all to do).

        Raises:
            MembershipLost: The member was closed meanwhile.
            CoordinatorError: The coordinator refuses this member for good.
            RuntimeError: The block was not entered.
        """

    def events(self) -> Iterator[MemberEvent[Share]]:
        """The events of this member, beginning with its current share. For watching: callbacks stop the work."""

    def commit(self, offsets: Iterable[OffsetToCommit]) -> None:
        """Record progress, fenced by the generation that is held now.

        Commits are sent in the order of the calls, also if the caller is cancelled. They are repeated while the
        coordinator cannot be reached, and after a resync or a cooperative rebalance in which this member kept its
        share.

        As in Kafka, the fence is the generation, not the assignment: commit only what is in `assignment`.

        Raises:
            MembershipLost: Nothing is held, or the generation is over: nothing was committed.
            RebalanceInProgress: The group is between two generations: nothing was committed.
            CoordinatorUnreachable: It is not known whether it was committed, and nothing is held any more.
            InvalidRequest: An offset is one that no coordinator accepts: nothing was committed. With the code
                `OFFSET_METADATA_TOO_LARGE` the partitions in its detail were not committed, all others were.
        """

    def fetch_offsets(self, topics: Sequence[TopicPartitions] | None = None) -> tuple[FetchedOffset, ...]:
        """The group's committed offsets; an offset of -1 where nothing was committed."""

    def verify_fence(self) -> FenceReply:
        """Ask the coordinator whether this member's generation is still the current one.

        Raises:
            MembershipLost: It is not, or nothing is held.
        """

    def signed_token(self) -> str:
        """A signed proof that this member is in the current generation, for services that check it offline.

        It is valid for a minute or so (`fence_token_ttl_ms`). `rota.fencing.tokens.Fence` checks it.

        Raises:
            MembershipLost: The generation is over, or nothing is held.
            InvalidRequest: The server has no keys to sign with.
        """

    def rejoin(self, reason: str) -> None:
        """Have the group rebalance (as the leader), or bring this member's part of it up to date. Any thread may call
        it, and callbacks, too.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def run(self, *, drain_timeout: float = STOP_DRAIN_S, handle_signals: bool = True) -> None:
        """Be a member until a signal, `stop` or cancellation; inside or outside of the block.

        SIGTERM and SIGINT stop in order, unless the program handles them: `on_revoked` is awaited for `drain_timeout`,
        and the group is left. A second signal cancels. This returns at most 2.5 s after that time.
        """

    def step_aside(self, reason: str) -> None:
        """Stop work in order and leave the group, but not for good: `come_back` joins again, as a new member.

        Called by a callback it returns at once, and the member steps aside when its callbacks have returned.
        """

    def come_back(self) -> None:
        """Join again after having stepped aside; as soon as this member has left, where that is still under way."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the other end. An error that ends it meanwhile comes out of `close`."""

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Stop work in order, commit and leave; also inside of a `with` block.

        After `timeout` seconds work is cancelled, `on_lost` is called if a callback has not returned, and the group is
        left. This returns at most 2.5 s later, in every state of the coordinator and of the work; in a callback or in
        work of a pool it returns at once.
        """

    def stop(self) -> None:
        """End `run` as a first SIGTERM does; a second call as a second one. May be called from any thread, and from a
        signal handler.
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
        """As `Member.trouble`; else the topics that this member names and that are not registered, or the work of a
        pool's shard that does not go well.
        """

    def owns(self, place: TopicPartition) -> bool:
        """Whether a partition is this member's now, by the clock; one that is being revoked still is. Any thread may
        ask.
        """

    def assignments(self) -> Iterator[Assigned[Partitions]]:
        """What this member holds, beginning with now, each time that it is another. Asking for the next is progress."""

    def progress(self) -> None:
        """Say that work goes on; so do `store` and `commit`. A member that fell silent joins its group again."""

    def store(
        self,
        topic: str,
        partition: int,
        offset: int,
        metadata: str = "",
        retention_time: float | None = None,
    ) -> None:
        """Note that everything before `offset` is done. It is committed when the partition is revoked, at the latest.

        `retention_time` seconds after that commit the offset may expire; without it, the server's retention counts.

        Raises:
            MembershipLost: This member does not hold the partition (any more).
            InvalidRequest: The offset or its metadata is one that no coordinator accepts; nothing is stored.
        """

    def commit(self, offsets: Iterable[OffsetToCommit] | None = None) -> None:
        """As `Member.commit`; without offsets, everything that is stored."""

    def commit_soon(self, offsets: Iterable[OffsetToCommit] | None = None, then: Committed | None = None) -> None:
        """Commit in the background, in the order of the calls; before partitions are given up, and before leaving.

        `then` is called with the outcome, also in that order; without it, a failure is logged.

        Raises:
            InvalidRequest: An offset is one that no coordinator accepts; nothing is committed.
        """

    def committed(self) -> dict[TopicPartition, int]:
        """The group's progress in what this member holds; 0 where nothing was committed yet."""

    @property
    def subscription(self) -> tuple[str, ...]:
        """The topics that this member asks for; for a pattern, those that match now."""

    def subscribe(self, topics: Topics) -> None:
        """Change the subscription. Topics that it no longer contains are revoked, and the group rebalances.

        Partition counts come from where they came before: a mapping's counts are added to those given at first.
        """

class ConnectWorker(Member[WorkShared]):
    """A `Member` with a share of connectors and tasks.

    Kept work goes on while the group rebalances. Work that moves is revoked first and assigned in a second
    round. Progress of a task is committed with the connector as the topic and the task as the partition.
    """

    @property
    def config_offset(self) -> int:
        """How far the configuration was read that led to this worker's share; -1 where no worker says how far it has.

        Read as far before you start what `on_assigned` adds.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Election:
    """A candidacy, for the time of a `with` block, or from `start` to `close`.

        with client.leader("billing-writer") as election:
            election.run(write)          # calls write(term) in each term; cancelled when the term is lost

    `terms` is the same by hand. Leaving the block ends the body first, then the leadership, so another candidate leads
    at once.
    """

    member: Member[Leadership]
    """The candidate's membership, for everything but leading."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def term(self) -> Term | None:
        """The term under way; None while this candidate does not lead. Any thread may ask."""

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now, by the clock. Any thread may ask."""

    @property
    def valid_until(self) -> float | None:
        """The expiry of the known state: this candidate's term, or that another one leads."""

    @property
    def unreachable_since(self) -> float | None:
        """See `Member.unreachable_since`."""

    @property
    def trouble(self) -> str:
        """See `Member.trouble`."""

    @property
    def failure(self) -> BaseException | None:
        """With `run(retry=True)`, the last exception of the work; None once work has run well for half a minute."""

    def terms(self) -> Iterator[Term]:
        """Each term as it begins. The next one comes when the one before is over."""

    def run(
        self,
        work: Callable[[Term], Outcome],
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        retry: bool = False,
    ) -> Outcome | None:
        """Wait to be elected and call `work(term)`; anew in each term, until it returns or raises. To return is to
        resign: this candidate leads and campaigns no more, until `run` is called again.

        SIGTERM and SIGINT end it in order, unless the program handles them: `term.stopping` is set, the work is
        cancelled (after `drain_timeout` if it looks at `term.stopping`), the group is left, and None is returned. A
        second signal cancels at once. This returns at most 2.5 s after `drain_timeout`, also if work ignores its
        cancellation.

        Args:
            work: A function that works while this candidate leads.
            drain_timeout: Time for work that looks at `term.stopping`, after a signal or when the leadership is handed
                over.
            handle_signals: Whether SIGTERM and SIGINT are handled here.
            retry: Campaign again, after a pause that grows, when `work` raises, instead of raising that; see `failure`.

        Raises:
            LeadershipLost: The block was left meanwhile.
            TypeError: `work` is no async function.
            RuntimeError: The election was closed, or its `run` is under way already.
        """

    def resign(self, reason: str = "resigned", *, pause: float = 0.0) -> None:
        """End the term in order and let another candidate lead; campaign again after `pause`, as the last in line.

        If the term's own body calls this, the body is cancelled here. It is completed even if the caller is cancelled.
        """

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the other end. An error that ends it meanwhile comes out of `close`."""

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Stop work in order, commit and leave; also inside of a `with` block.

        After `timeout` seconds work is cancelled, `on_lost` is called if a callback has not returned, and the group is
        left. This returns at most 2.5 s later, in every state of the coordinator and of the work; in a callback or in
        work of a pool it returns at once.
        """

    def stop(self) -> None:
        """End `run` as a first SIGTERM does; a second call as a second one. May be called from any thread, and from a
        signal handler.
        """

class Term:
    """One time of leading. As a `with` block it cancels its body when it is over, and raises `LeadershipLost`.

    Several tasks may be in its block at once: all are cancelled. A term continues while other candidates join and
    leave; `fencing_token` then grows, and never goes back.
    """

    lost: FinalSignal
    """Set once this term is over, for whatever reason: wait for it, or look at `is_valid`."""

    reason: str
    """Why it is over."""

    @property
    def fencing_token(self) -> int:
        """The fencing token: give it to whatever you write to, and have older ones refused there."""

    @property
    def stopping(self) -> FinalSignal:
        """Set when the work should end, while the term may still be valid; never later than `lost`. Work that has
        looked at it is drained, other work is cancelled at once.
        """

    @property
    def valid_until(self) -> float | None:
        """When this term ends unless it is renewed, in seconds of the event loop's clock; None once it is over.

        Always earlier than the moment from which the coordinator may let another member lead.
        """

    @property
    def is_valid(self) -> bool:
        """Whether this candidate leads now, by the clock: right also after the event loop was blocked. Any thread may
        ask.
        """

    def raise_if_lost(self) -> None:
        """Raise `LeadershipLost` unless the term is valid now. To be called before what must not be done twice. Any
        thread may call it.
        """

    def verify(self) -> FenceReply:
        """Ask the coordinator whether this term's generation is the current one; `LeadershipLost` if not."""

    def signed_token(self) -> str:
        """A signed proof of this term's generation, for services that check it offline; `LeadershipLost` if it is over.

        Good for a minute or so: ask again when it has run out.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Permits:
    """A permit for the time of a `with` block, or from `start` to `close`; entering waits until it is granted.

        with client.permits("downloads", 3) as permit:
            download(permit.number, permit.fencing_token)   # cancelled when the permit is lost

    `client.lock(name)` is the same with one permit. If the permit is lost, the block raises `PermitLost`; its end gives
    the permit to the member that has waited longest. `run` holds permits again and again.
    """

    def __enter__(self) -> Permit: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def permit(self) -> Permit:
        """The permit that this holds, or held, as the block has it; RuntimeError before one was granted."""

    @property
    def of(self) -> int:
        """How many permits the group has: the lowest number that a member asks for. 0 before the first answer."""

    @property
    def place(self) -> int:
        """The place in the line: 1 gets the next permit; 0 with a permit."""

    def run(
        self,
        work: Callable[[Permit], Outcome],
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        retry: bool = False,
    ) -> Outcome | None:
        """Wait for a permit and call `work(permit)`; anew with each permit, until it returns or raises. Use this
        instead of the block. Arguments, signals and errors are those of `Election.run`, with `PermitLost`;
        `wait_timeout` does not count.
        """

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Give the permit back, or stop waiting for one. A body that calls this goes on, without the permit; one of
        another task is cancelled.
        """

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the other end. An error that ends it meanwhile comes out of `close`."""

    def stop(self) -> None:
        """End `run` as a first SIGTERM does; a second call as a second one. May be called from any thread, and from a
        signal handler.
        """

class Permit(Term):
    """One time of holding a permit; as a `with` block, it cancels its body where the permit is lost, and raises
    `PermitLost`.

    The permit, its number and its token stay the same while other members come and go.
    """

    @property
    def number(self) -> int:
        """The number of the permit: 0 to N - 1. A fenced system keeps the highest token seen for each number."""

    @property
    def fencing_token(self) -> int:
        """The fencing token: greater than each that this permit had before, and the same until the permit is over."""

    @property
    def is_valid(self) -> bool:
        """Whether the permit is held now, by the clock: right also after the event loop was blocked. Any thread may
        ask.
        """

class WorkerPool:
    """Runs `work(shard)` for each shard that this process holds, for the time of a `with` block, from `start` to
    `close`, or for that of `run`.

    When a shard is revoked, `shard.stopping` is set, and the task is cancelled, after `drain_timeout` if it has looked
    at that. The shard is free for others when the task has ended. The task of a lost shard is cancelled at once. If
    `work` raises, all other work stops in order, progress is committed, and the block ends with that error;
    `run(retry=True)` tries that shard again. A group with a quarantine leaves out a shard that fails again and again.
    """

    consumer: Consumer
    """The membership underneath, for everything but shards."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def shards(self) -> tuple[TopicPartition, ...]:
        """What this process holds now. Any thread may ask."""

    @property
    def trouble(self) -> str:
        """As `Member.trouble`; else a shard whose work was silent or raised, and is tried again."""

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
        (after `drain_timeout` if it looks at that), progress is committed, and the group is left. A second signal
        cancels at once. This returns at most 2.5 s after `drain_timeout`, also if work ignores its cancellation.

        Args:
            drain_timeout: Time for work that looks at `shard.stopping`, after a signal.
            handle_signals: Whether SIGTERM and SIGINT are handled here.
            until_done: Also stop once the work on all shards that are held has returned; see `wait_done`.
            retry: When `work` raises, call it again for that shard after a pause from 1 to 30 s, while the others work
                on. In a group with a quarantine, each third failure in a row is reported: the pool leaves, and joins
                again.
        """

    def wait_done(self, *, timeout: float | None = None) -> None:
        """Return once this process holds shards (maybe none) and the work on each of them has returned.

        Raises:
            MembershipLost: The pool was closed meanwhile.
            RuntimeError: The block was not entered.
        """

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""

    def start(self) -> None:
        """Enter, as a block does; `close` is the other end. An error that ends it meanwhile comes out of `close`."""

    def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Stop work in order, commit and leave; also inside of a `with` block.

        After `timeout` seconds work is cancelled, `on_lost` is called if a callback has not returned, and the group is
        left. This returns at most 2.5 s later, in every state of the coordinator and of the work; in a callback or in
        work of a pool it returns at once.
        """

    def stop(self) -> None:
        """End `run` as a first SIGTERM does; a second call as a second one. May be called from any thread, and from a
        signal handler.
        """

class Shard:
    """One partition while this process works on it."""

    topic: str

    partition: int

    promoted: FinalSignal
    """Set when this copy is the active one, from the beginning or later; see `role`."""

    @property
    def role(self) -> str:
        """`active` or `standby`. By strategies such as `redundant(2)`, one of the copies of a partition is active."""

    @property
    def stopping(self) -> FinalSignal:
        """Set when the shard is to be given up. Work that has looked at it has `drain_timeout` to end by itself; other
        work is cancelled at once.
        """

    @property
    def fencing_token(self) -> int:
        """The fencing token: give it to whatever you write to, and have older ones refused there."""

    @property
    def generation_id(self) -> int:
        """The generation: with `member_id`, what `rota.commit_offsets` in a transaction asks for."""

    @property
    def member_id(self) -> str:
        """Which member of its group this process is: what a fence asks for beside the generation or the token."""

    @property
    def valid_until(self) -> float | None:
        """When the shard is lost unless it is renewed, in seconds of the event loop's clock; None once it is."""

    @property
    def is_held(self) -> bool:
        """Whether this process may work on the shard now, by the clock; False once its work was cancelled. Any thread
        may ask.
        """

    def raise_if_lost(self) -> None:
        """Raise `MembershipLost` unless the shard is held now. To be called before what must not be done twice. Any
        thread may call it.
        """

    def position(self) -> int:
        """Where to go on: the group's last commit, 0 where there is none. Retried for as long as the shard is held."""

    def commit(self, offset: int, metadata: str = "", retention_time: float | None = None) -> None:
        """Record that everything before `offset` is done; `MembershipLost` if the shard is another's by now.

        `retention_time` seconds later the offset may expire; without it, the server's retention counts.
        """

    def store(self, offset: int, metadata: str = "", retention_time: float | None = None) -> None:
        """Note that everything before `offset` is done. The pool commits it every `auto_commit_interval`, when the
        shard is revoked, when the pool is closed, and when work raises. `retention_time`: as in `commit`.
        """

    def progress(self) -> None:
        """Say that work on this shard goes on; so do `store` and `commit`. See `max_processing_interval`."""

class FinalSignal(Event):
    """An `asyncio.Event` that threads may wait for, too: `signal.wait()`, or `signal.wait_in_thread(1.0)`.

    `is_set` may be called from any thread.
    """

    def set(self) -> None:
        """Wake all tasks and threads that wait. Called on the event loop."""

    def clear(self) -> None:
        """What was said stays said."""

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Wait in a thread that runs no event loop, for at most `timeout` seconds; whether the signal is set."""
