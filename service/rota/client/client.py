"""The way in: a client of one namespace, from which members come."""

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
from rota.client.connect_worker import ConfigOffset, Configured, ConnectWorker, WorkRole
from rota.client.consumer import Consumer
from rota.client.consumer_protocol import PROTOCOL_TYPE, PartitionCounts, TopicRole, load_strategies
from rota.client.context import ClientContext
from rota.client.election import CandidateRole, Election
from rota.client.errors import typed_errors
from rota.client.lag import LoopLag
from rota.client.member import Member
from rota.client.options import (
    ConsumerOptions,
    ConsumerSettings,
    MemberOptions,
    MemberSettings,
    SessionOptions,
    SessionSettings,
)
from rota.client.permits import PermitCandidacy, PermitRole, Permits
from rota.client.pulse import Pulse
from rota.client.registered_topics import RegisteredTopics
from rota.client.roles import Assign, OpaqueRole, Protocols, Role, Share, Without
from rota.client.seconds import (
    HOUR,
    PREEMPT_AFTER_S,
    RETRY_TIMEOUT_S,
    RETURN_DELAY_S,
    REVOKE_DRAIN_S,
    TOPICS_REFRESH_S,
    check_interval,
    check_seconds,
    to_ms,
)
from rota.client.topics import Topics, TopicSelection
from rota.client.topics_watch import TopicsWatch
from rota.client.transports.addresses import transport_to
from rota.client.transports.port import Transport
from rota.client.worker_pool import Work, WorkerPool
from rota.credentials import Credentials
from rota.membership import MembershipSettings
from rota.protocol.ids import check_client_id, check_group_id, check_instance_id
from rota.protocol.messages import NO_GENERATION
from rota.types import leader, worker
from rota.types import permits as permits_type

INSTANCE_ID_VARIABLE = "ROTA_GROUP_INSTANCE_ID"
"""Makes every member of a process static, each in its group: one process should have one in a group."""


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
    """A client of the coordinator at `url`, for the time of an `async with` block. Nothing is sent yet.

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
    urls = _urls_of(url)
    if credentials is not None and type(credentials) is not Credentials:
        # Not its value: it may be the token.
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
        raise TypeError(
            f"url must be a URL, or a list of them, not {given!r}; is the variable set that should have it?"
        )
    return found


def _unary(url: str) -> str:
    """The same coordinator without a stream: a heartbeat of the pulse's is a call of its own."""
    return url.replace("+stream://", "://").partition("?")[0]


class Client(Administration):
    """Speaks for one namespace over one transport, which it closes: an `async with` block, or `start` and `close`."""

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
        """`jitter` gives random numbers from 0 to 1, by which the members of a fleet spread their calls."""
        super().__init__(transport, namespace, retry_timeout=retry_timeout, jitter=jitter)
        self._context = ClientContext(transport, jitter, pulse, stats=self.stats)
        self._retry_refusals = retry_refusals
        self._members_caller = self._caller
        """As `_caller`, for members, which end in their own order."""
        self._caller = Caller(
            transport,
            retry_timeout=retry_timeout,
            jitter=jitter,
            stats=self.stats.calls,
            check=self._context.check_usable,
        )
        self.lag: LoopLag = LoopLag(on_resume=self._context.check_deadlines)
        """How late this client's event loop is: one that is blocked sends no heartbeats."""
        self.stats.watch_loop(self.lag)
        self.client_id: str = socket.gethostname() if client_id is None else client_id
        with typed_errors():
            check_client_id(self.client_id)

    async def start(self) -> None:
        """Enter, as a block does, for clients that live in an object or a fixture; `close` is the other end."""
        self._context.check_usable()
        self.lag.start()

    async def close(self) -> None:
        """Close the members that are still open, in order, and then the connections. To close twice does no harm."""
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
        """One of N permits, which are held by at most N members at a time; each has a fencing token of its own.

        Args:
            name: The group of those that hold a permit or wait for one.
            permits: N, 1 to 1,000,000. If members disagree, the lowest counts; it takes no permit away.
            wait_timeout: How long to wait for a permit; by default until one is free.
            on_lost: `on_lost(permit)` is called when the permit is lost, and not when it is given back.
            options: See `SessionOptions`. With a `group_instance_id`, a process that restarts within the session has
                the permit again, with a higher token.
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
        """A lock with a fencing token: `permits` with one permit. The arguments are those of `permits`."""
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
        """Runs `work(shard)` for each partition that this process holds, as long as it holds it.

        Args:
            group_id: As in `consumer`.
            topics: The shards, as partitions of topics.
            work: An async function that works on one `Shard`. It is cancelled when the shard is revoked or lost; a
                thread looks at `shard.is_held` or waits for `shard.stopping`.
            strategy: As in `consumer`.
            drain_timeout: How long work may go on after `shard.stopping` was set, before it is cancelled.
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
            on_assigned: `on_assigned(added, all)` starts work; plain or async. Returns soon. Each of the three is
                called with `deadline`, if it has such a parameter.
            on_revoked: `on_revoked(removed)` stops work and commits; it is waited for.
            on_lost: `on_lost(removed)` stops work at once, without a commit, where it is too late to give up in order.
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
        """Raises what the coordinator would answer to these names, and ValueError for times that do not fit."""
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
