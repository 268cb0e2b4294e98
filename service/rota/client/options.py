"""Options of members, their defaults, and checks of the times that programs give. Times are seconds; the protocol has
milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, overload

from rota.protocol.defaults import (
    AUTO_COMMIT_MS,
    CONSUMER_REBALANCE_TIMEOUT_MS,
    DRAIN_GRANT_MS,
    PREEMPT_AFTER_MS,
    REBALANCE_TIMEOUT_MS,
    RETRY_TIMEOUT_MS,
    RETURN_DELAY_MS,
    REVOKE_DRAIN_MS,
    SESSION_TIMEOUT_MS,
    STOP_DRAIN_MS,
    TOPICS_REFRESH_MS,
)

SESSION_TIMEOUT_S = SESSION_TIMEOUT_MS / 1000
REBALANCE_TIMEOUT_S = REBALANCE_TIMEOUT_MS / 1000
CONSUMER_REBALANCE_TIMEOUT_S = CONSUMER_REBALANCE_TIMEOUT_MS / 1000
AUTO_COMMIT_S = AUTO_COMMIT_MS / 1000
TOPICS_REFRESH_S = TOPICS_REFRESH_MS / 1000
RETURN_DELAY_S = RETURN_DELAY_MS / 1000
PREEMPT_AFTER_S = PREEMPT_AFTER_MS / 1000
DRAIN_GRANT_S = DRAIN_GRANT_MS / 1000
RETRY_TIMEOUT_S = RETRY_TIMEOUT_MS / 1000
STOP_DRAIN_S = STOP_DRAIN_MS / 1000
REVOKE_DRAIN_S = REVOKE_DRAIN_MS / 1000

HOUR: Final = 3_600
DAY: Final = 86_400


def check_seconds(
    name: str, seconds: float | None, longest: int = DAY, *, shortest: float = 0, optional: bool = False
) -> None:
    """Reject an invalid time in seconds, such as a session of 15,000, which is probably in milliseconds.

    Raises:
        TypeError: It is not a number, nor None if it is `optional`.
        ValueError: It is out of bounds.
    """
    if seconds is None and optional:
        return
    if not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {seconds!r}")
    if not shortest <= seconds <= longest:
        raise ValueError(f"{name} must be {shortest} to {longest} seconds, not {seconds!r}")


def check_interval(name: str, seconds: float | None, longest: int = DAY, *, optional: bool = False) -> None:
    """Check a time as `check_seconds` does. 0 is rejected, since it would keep the event loop busy."""
    check_seconds(name, seconds, longest, shortest=0.001, optional=optional)


@overload
def to_ms(seconds: float) -> int: ...
@overload
def to_ms(seconds: float | None) -> int | None: ...
def to_ms(seconds: float | None) -> int | None:
    """Convert seconds to the protocol's milliseconds."""
    return None if seconds is None else round(seconds * 1000)


class SessionOptions(TypedDict, total=False):
    """Options of `permits` and `lock`, and of each kind of member."""

    session_timeout: float
    """Time without a heartbeat after which the coordinator removes this member; it stops its work before."""
    heartbeat_interval: float | None
    """Time between two heartbeats, at most half of the session timeout. By default a third of it and at most 3 s;
    parked heartbeats may take longer.
    """
    rebalance_timeout: float
    """Maximum time for revoked work to end: the body of a term or permit, or `on_revoked`."""
    group_instance_id: str | None
    """Makes the member static: it gets its share again after a restart. Default: the variable
    `ROTA_GROUP_INSTANCE_ID`.
    """


class MemberOptions(SessionOptions, total=False):
    """Options of `leader`, `connect_worker` and `member`, and of those below."""

    leave_on_close: bool | None
    """Whether the end of the block sends a LeaveGroup; by default not for static members."""


class ConsumerOptions(MemberOptions, total=False):
    """Options of `consumer` and `worker_pool`."""

    max_processing_interval: float | None
    """Maximum time without a commit, `store` or `progress`; the share is then released, and the member joins again at
    the next one. In a pool it also applies to each shard: its work is restarted, while the others continue.
    """
    auto_commit_interval: float | None
    """Interval of commits of stored offsets; None: they are committed only when partitions are revoked and when the
    consumer is closed.
    """
    topics_refresh_interval: float
    """Interval at which the leader checks for new topics and partitions without a notification, and calls
    `partitions_per_topic`.
    """
    topics_debounce: float
    """Time for which changes of topics are collected before one rebalance. With `server:` the longest time of all
    members applies, otherwise the leader's.
    """
    topics_except: Sequence[str]
    """Topics to exclude from those that `topics` selects, by name or prefix (`audit-*`)."""
    rack_id: str | None
    """The rack of this member, for strategies that use racks."""
    capacity: float
    """The member's capacity relative to the others, for `weighted`."""


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
