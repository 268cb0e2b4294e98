"""The causes of rebalances and of dropped shards as a small set of codes: the sentences name members."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rota.protocol.causes import Cause

_DROPS = tuple(
    (cause, re.compile(pattern))
    for cause, pattern in (
        ("handed_over", r"handed over$"),
        ("lease_lost", r"(the lease |the shard belongs to another)"),
        ("store_failed", r"a write has an unknown outcome"),
        ("broken_invariant", r"a broken invariant"),
    )
)


def rebalance_cause(payload: Mapping[str, Any]) -> str:
    """Return the cause's code in a line about a rebalance or an empty group; a later release may send other codes."""
    code: str = payload.get("cause") or Cause.OTHER.value
    return code


def drop_cause(reason: str) -> str:
    """Return why a replica stopped serving a shard."""
    return next((cause for cause, pattern in _DROPS if pattern.match(reason)), Cause.OTHER.value)
