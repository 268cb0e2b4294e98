"""The order in which Kafka's sticky assignors come upon the members, which decides between equally entitled ones.

There it is the order of a Java hash map. Any order would do; with this one the results are the same as Kafka's, so
that the two can be compared case by case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def tie_order(member_ids: Sequence[str]) -> list[int]:
    """The positions of `member_ids` in the order that a Java hash map with these keys would have."""
    capacity = 16
    while len(member_ids) > capacity * 3 // 4:
        capacity *= 2
    buckets = [_spread(_java_hash(member_id)) % capacity for member_id in member_ids]
    return sorted(range(len(member_ids)), key=lambda position: (buckets[position], member_ids[position]))


# The same members are hashed in every rebalance; more of them than that are a matter of milliseconds.
@lru_cache(maxsize=4096)
def _java_hash(text: str) -> int:
    """`String.hashCode()` as an unsigned number: over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value


def _spread(value: int) -> int:
    """What a hash map makes of a hash before it picks a bucket."""
    return value ^ value >> 16
