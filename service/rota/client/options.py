"""The options of members: what callers may give, and the defaults of the rest. Times are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from rota.client.seconds import (
    AUTO_COMMIT_S,
    CONSUMER_REBALANCE_TIMEOUT_S,
    HOUR,
    REBALANCE_TIMEOUT_S,
    SESSION_TIMEOUT_S,
    TOPICS_REFRESH_S,
    check_interval,
    check_seconds,
)


class SessionOptions(TypedDict, total=False):
    """Options of `permits` and `lock`, and of each kind of member."""

    session_timeout: float
    """Time without a heartbeat after which the coordinator removes this member; it stops its work before."""
    heartbeat_interval: float | None
    """Time between two heartbeats, at most half of the session timeout. By default a third of it and at most 3 s; one
    that the coordinator parks, to answer at the next event, may take longer."""
    rebalance_timeout: float
    """How long the work may take at most to end when it is to be given up: the body of a term or permit, or
    `on_revoked`."""
    group_instance_id: str | None
    """Makes the member static: it takes its place again after a restart. By default what the environment variable
    `ROTA_GROUP_INSTANCE_ID` says, if it is set."""


class MemberOptions(SessionOptions, total=False):
    """Options of `leader`, `connect_worker` and `member`, and of those below."""

    leave_on_close: bool | None
    """Whether the end of the block tells the group; by default not for static members."""


class ConsumerOptions(MemberOptions, total=False):
    """Options of `consumer` and `worker_pool`."""

    max_processing_interval: float | None
    """Give the share up when for so long nothing was committed or stored, nor `progress` called, though heartbeats go
    on. The member joins again with the next progress. In a pool also each shard by itself: its work is cancelled and
    started again, while the others work on."""
    auto_commit_interval: float | None
    """Commit what was stored as often as this; None: only when partitions are revoked and when the consumer is closed,
    which commits it in any case."""
    topics_refresh_interval: float
    """How often to look for new topics and partitions of which no notification comes: the group's leader learns from
    the coordinator which topics are registered there, and calls a function."""
    topics_debounce: float
    """For how long changes of topics collect, from the first one on, before the group is assigned anew; then all of
    them lead to one generation. With `server:` the longest time counts that a member names, otherwise the leader's.
    Give all members the same."""
    topics_except: Sequence[str]
    """Topics to leave out of those that `topics` means, by name or by a beginning (`audit-*`)."""
    rack_id: str | None
    """The rack of this member, for strategies that use racks."""
    capacity: float
    """How much this member carries, against others, for `weighted`."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """`SessionOptions` with their defaults."""

    session_timeout: float = SESSION_TIMEOUT_S
    heartbeat_interval: float | None = None
    rebalance_timeout: float = REBALANCE_TIMEOUT_S
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        check_interval("session_timeout", self.session_timeout, HOUR)
        check_interval("heartbeat_interval", self.heartbeat_interval, HOUR, optional=True)
        check_seconds("rebalance_timeout", self.rebalance_timeout)


@dataclass(frozen=True, slots=True)
class MemberSettings(SessionSettings):
    """`MemberOptions` with their defaults."""

    leave_on_close: bool | None = None


@dataclass(frozen=True, slots=True)
class ConsumerSettings(MemberSettings):
    """`ConsumerOptions` with their defaults."""

    rebalance_timeout: float = CONSUMER_REBALANCE_TIMEOUT_S
    max_processing_interval: float | None = None
    auto_commit_interval: float | None = AUTO_COMMIT_S
    topics_refresh_interval: float = TOPICS_REFRESH_S
    topics_debounce: float = 0.0
    topics_except: Sequence[str] = ()
    rack_id: str | None = None
    capacity: float = 1.0

    def __post_init__(self) -> None:
        MemberSettings.__post_init__(self)
        check_interval("auto_commit_interval", self.auto_commit_interval, HOUR, optional=True)
        check_interval("max_processing_interval", self.max_processing_interval, optional=True)
        check_interval("topics_refresh_interval", self.topics_refresh_interval, HOUR)
        check_seconds("topics_debounce", self.topics_debounce, HOUR)
