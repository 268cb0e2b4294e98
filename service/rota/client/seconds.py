"""Conversion of the SDK's seconds to the protocol's milliseconds, with checks of the values that programs give."""

from __future__ import annotations

from typing import Final, overload

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
