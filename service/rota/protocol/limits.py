"""Bounds and defaults of the protocol (protocol.md §6). Times in milliseconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from rota.protocol import defaults

CONSUMER_REBALANCE_TIMEOUT_MS = defaults.CONSUMER_REBALANCE_TIMEOUT_MS
REBALANCE_TIMEOUT_MS = defaults.REBALANCE_TIMEOUT_MS
SESSION_TIMEOUT_MS = defaults.SERVER_SESSION_TIMEOUT_MS
"""These three apply to a join that names none."""
MAX_WAIT_MS = 50_000
"""The longest a call stays parked: proxies cut silent connections after 60 s."""

MAX_TOPICS_DEBOUNCE_MS = 3_600_000
"""The longest time for which a group may let changes of its topics collect."""
MAX_FREEZE_MS = 7 * 86_400_000
"""The longest time for which a group may be frozen."""
MAX_FALLS = 100
"""The highest number of falls that a quarantine may wait for."""
MAX_QUARANTINED = 100
"""The highest number of units that may be quarantined at once: a fault of more is not the units'."""
MAX_RETENTION_TIME_MS = 100 * 366 * 86_400_000
"""The longest retention that a commit may name: a century."""
MAX_PREEMPT_AFTER_MS = 86_400_000
"""The longest time for which a candidate may wait before it preempts a leader."""
MAX_DELAY_MS = 86_400_000
"""The longest time for which work may wait for a departed worker."""
MAX_SAFE_INTEGER = 2**53 - 1
"""JSON has larger numbers as strings, because readers that know only doubles would change them."""
MAX_GENERATION = 2**31 - 1
"""Generations are 32-bit numbers in Kafka's protocol and in ours."""
GENERATIONS_RAISED = 1_000_000
"""How far the generations of a store that went back jump, where it is not known which ones were granted. A group that
opens one each second needs 11 days for as many, and there is room for 2,000 such jumps."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one coordinator allows. The defaults are the documented ones."""

    min_session_timeout_ms: int = 1_000
    max_session_timeout_ms: int = 1_800_000
    max_rebalance_timeout_ms: int = 86_400_000
    initial_rebalance_delay_ms: int = 250
    group_max_size: int = 10_000
    max_protocols: int = 64
    metadata_max_bytes: int = 64 * 1024
    assignment_max_bytes: int = 256 * 1024
    request_max_bytes: int = 8 * 1024 * 1024
    offset_metadata_max_chars: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    empty_group_retention_ms: int = 24 * 3_600_000
    max_partitions_per_request: int = 100_000
    max_topic_partitions: int = 1_000_000
    reason_max_chars: int = 1_000
    session_stats_interval_ms: int = 600_000
