"""A client of one namespace, which creates members."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from rota.client.administration import Administration
from rota.client.callbacks import Listener, Listeners
from rota.client.calls import Caller
from rota.client.clock import LoopLag
from rota.client.connect_worker import ConfigOffset, Configured, ConnectWorker, WorkRole
from rota.client.consumer import Consumer
from rota.client.consumer_protocol import PROTOCOL_TYPE, PartitionCounts, TopicRole, load_strategies
from rota.client.context import ClientContext
from rota.client.election import CandidateRole, Election
from rota.client.errors import typed_errors
from rota.client.member import Member
from rota.client.options import (
    HOUR,
    PREEMPT_AFTER_S,
    RETRY_TIMEOUT_S,
    RETURN_DELAY_S,
    REVOKE_DRAIN_S,
    TOPICS_REFRESH_S,
    ConsumerOptions,
    ConsumerSettings,
    MemberOptions,
    MemberSettings,
    SessionOptions,
    SessionSettings,
    check_interval,
    check_seconds,
    to_ms,
)
from rota.client.permits import PermitCandidacy, PermitRole, Permits
from rota.client.pulse import Pulse
from rota.client.roles import Assign, OpaqueRole, Protocols, Role, Share, Without
from rota.client.stats import ClientStats
from rota.client.topics import RegisteredTopics, Topics, TopicSelection, TopicsWatch
from rota.client.transports.addresses import transport_to
from rota.client.transports.port import Transport
from rota.client.worker_pool import Work, WorkerPool
from rota.core.membership import MembershipSettings
from rota.core.types import leader, worker
from rota.core.types import permits as permits_type
from rota.credentials import Credentials
from rota.protocol.ids import check_client_id, check_group_id, check_instance_id, check_namespace
from rota.protocol.messages import NO_GENERATION

INSTANCE_ID_VARIABLE = "ROTA_GROUP_INSTANCE_ID"
"""The variable that makes each member of a process static. A process should have one member in a group."""


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
    """Create a client of the coordinator at `url`, for an `async with` block. No request is sent yet.

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
    urls = _urls_of(url)
    if credentials is not None and type(credentials) is not Credentials:
        # The message has no value: it may be the token.
        raise TypeError(f"credentials must be Credentials, as Credentials(token=…), not {type(credentials).__name__}")
    shown = (credentials or Credentials()).or_environment()
    transport = transport_to(urls, headers, shown, direct=direct)
    beside = partial(transport_to, [_unary(each) for each in urls], headers, shown, direct=direct)
    pulse = Pulse(beside) if heartbeat_thread else None
    return Client(
        transport,
        namespace,
        client_id=client_id,
        retry_timeout=retry_timeout,
        pulse=pulse,
        retry_refusals=retry_refusals,
    )


def _urls_of(given: object) -> list[str]:
    found: list[Any] = [given]
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        found = list(given)
    if not all(isinstance(each, str) for each in found):
        raise TypeError(f"url must be a URL, or a list of them, not {given!r}; is its environment variable set?")
    return found


def _unary(url: str) -> str:
    """Return the URL of the same coordinator without a stream: each heartbeat of the pulse is a separate call."""
    return url.replace("+stream://", "://").partition("?")[0]


class Client(Administration):
    """Sends calls for one namespace over one transport, which it closes: use an `async with` block, or `start` and
    `close`.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str = "default",
        *,
        client_id: str | None = None,
        retry_timeout: float = RETRY_TIMEOUT_S,
        pulse: Pulse | None = None,
        retry_refusals: bool = True,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` returns random numbers from 0 to 1, which spread the calls of many members."""
        check_seconds("retry_timeout", retry_timeout)
        self.namespace: str = namespace
        self.client_id: str = socket.gethostname() if client_id is None else client_id
        with typed_errors():
            check_namespace(namespace)
            check_client_id(self.client_id)
        self._transport = transport
        self.stats: ClientStats = ClientStats(namespace)
        """The counters of this client and its members: `rota.adapters.prometheus` and `.opentelemetry` export them."""
        self._context = ClientContext(transport, jitter, pulse, stats=self.stats)
        self._retry_refusals = retry_refusals
        calling = partial(Caller, transport, retry_timeout=retry_timeout, jitter=jitter, stats=self.stats.calls)
        self._caller = calling(check=self._context.check_usable)
        self._members_caller = calling()
        """The members' caller, without the check of `_caller`: members still leave while the client closes."""
        self.lag: LoopLag = LoopLag(on_resume=self._context.check_deadlines)
        """Lag of this client's event loop: a blocked loop sends no heartbeats."""
        self.stats.watch_loop(self.lag)

    async def start(self) -> None:
        """Enter, as a block does, for clients that live in an object or a fixture; `close` is the counterpart."""
        self._context.check_usable()
        self.lag.start()

    async def close(self) -> None:
        """Close the members that are still open, in order, and then the connections. A second call has no effect."""
        try:
            await self._context.close_members()
        finally:
            self._context.is_closed = True
            self.stats.close()
            await self.lag.stop()
            if self._context.pulse is not None:
                await asyncio.to_thread(self._context.pulse.stop)
            await self._transport.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- members ------------------------------------------------------------------------------

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
        given = MemberSettings(**options)
        role = CandidateRole(metadata, priority=priority, preempt_after=preempt_after)
        settings = self._settings(name, leader.PROTOCOL_TYPE, role, given)
        return Election(self._context, settings, role=role, leave_on_close=given.leave_on_close)

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
        check_seconds("wait_timeout", wait_timeout, optional=True)
        role = PermitRole(permits)
        settings = self._settings(name, permits_type.PROTOCOL_TYPE, role, SessionSettings(**options))
        return Permits(PermitCandidacy(self._context, settings, role=role, on_lost=on_lost), wait_timeout=wait_timeout)

    def lock(
        self,
        name: str,
        *,
        wait_timeout: float | None = None,
        on_lost: Listener | None = None,
        **options: Unpack[SessionOptions],
    ) -> Permits:
        """Create a lock with a fencing token: `permits` with one permit. The arguments are those of `permits`."""
        return self.permits(name, 1, wait_timeout=wait_timeout, on_lost=on_lost, **options)

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
        given = ConsumerSettings(**options)
        selection = TopicSelection.of(topics, given.topics_except)
        registered = RegisteredTopics(self._members_caller, self.namespace)
        counts = partitions_per_topic or (topics if isinstance(topics, Mapping) else registered)
        is_registered = selection.pattern is not None or counts is registered
        watch = TopicsWatch(
            self._transport,
            self.namespace,
            longest_pause_ms=to_ms(given.topics_refresh_interval),
            jitter=self._context.jitter,
            stats=self.stats.calls,
        )
        strategies = (strategy,) if isinstance(strategy, str) else tuple(strategy)
        load_strategies(strategies)
        role = TopicRole(
            strategies, selection.names, counts, given.rack_id, given.capacity, to_ms(given.topics_debounce)
        )
        return Consumer(
            self._context,
            self._settings(group_id, PROTOCOL_TYPE, role, given),
            role=role,
            selection=selection,
            registered=registered,
            listeners=Listeners(on_assigned, on_revoked, on_lost),
            options=given,
            watch=watch if is_registered else None,
        )

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
            work: An async function that works on one `Shard`. It is cancelled when the shard is revoked or lost; a
                thread checks `shard.is_held` or waits for `shard.stopping`.
            strategy: As in `consumer`.
            drain_timeout: Time between `shard.stopping` and the cancellation of the work.
            partitions_per_topic: As in `consumer`.
            options: See `ConsumerOptions`.
        """
        make = partial(self.consumer, group_id, topics, strategy, partitions_per_topic=partitions_per_topic, **options)
        return WorkerPool(
            lambda to: make(on_assigned=to.on_assigned, on_revoked=to.on_revoked, on_lost=to.on_lost),
            work,
            drain_timeout=drain_timeout,
        )

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
        given = MemberSettings(**options)
        named = (connectors,) if isinstance(connectors, str) else tuple(connectors)
        offered = (protocols,) if isinstance(protocols, str) else tuple(protocols)
        check_seconds("scheduled_rebalance_max_delay", scheduled_rebalance_max_delay)
        check_interval("refresh_interval", refresh_interval, HOUR)
        role = WorkRole(configured, url, to_ms(scheduled_rebalance_max_delay), named, config_offset, offered)
        return ConnectWorker(
            self._context,
            self._settings(group_id, worker.PROTOCOL_TYPE, role, given),
            role=role,
            listeners=Listeners(on_assigned, on_revoked, on_lost),
            refresh_interval=refresh_interval,
            leave_on_close=given.leave_on_close,
        )

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
            on_assigned: `on_assigned(added, all)` starts work and returns soon; plain or async. Each of the three
                callbacks is called with `deadline`, if it has such a parameter.
            on_revoked: `on_revoked(removed)` stops work and commits; it is awaited.
            on_lost: `on_lost(removed)` stops work at once, without a commit, if it is too late to revoke in order.
            options: See `MemberOptions`.
        """
        given = MemberSettings(**options)
        role = OpaqueRole(protocols, assign, without)
        if without is not None and (given.group_instance_id or os.environ.get(INSTANCE_ID_VARIABLE)):
            raise ValueError("a cooperative member of a kind of your own cannot be static")
        return Member(
            self._context,
            self._settings(group_id, protocol_type, role, given),
            role=role,
            listeners=Listeners(on_assigned, on_revoked, on_lost),
            leave_on_close=given.leave_on_close,
        )

    def _settings(
        self,
        group_id: str,
        protocol_type: str,
        role: Role[Share],
        given: SessionSettings,
    ) -> MembershipSettings:
        """Return a member's settings. Raises the coordinator's error for invalid names, and ValueError for inconsistent
        times.
        """
        self._context.check_open()
        instance_id = given.group_instance_id or os.environ.get(INSTANCE_ID_VARIABLE) or None
        with typed_errors():
            check_group_id(group_id)
            if instance_id is not None:
                check_instance_id(instance_id)
        return MembershipSettings(
            self.namespace,
            group_id,
            protocol_type,
            role.protocols(None, NO_GENERATION),
            to_ms(given.session_timeout),
            to_ms(given.rebalance_timeout),
            instance_id,
            self.client_id,
            heartbeat_ms=to_ms(given.heartbeat_interval),
            retry_refusals=self._retry_refusals,
        )
