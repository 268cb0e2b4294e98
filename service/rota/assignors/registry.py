"""The assignors by the name that members list among their protocols, options included: `redundant(n=3)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from rota.assignors.cooperative_sticky import cooperative_sticky
from rota.assignors.copartitioned import copartitioned
from rota.assignors.model import Assignor, MemberSubscription, PartitionRacks, PartitionWeights, Shares
from rota.assignors.rack_aware import rack_aware
from rota.assignors.range import range_assignor
from rota.assignors.redundant import redundant
from rota.assignors.roundrobin import roundrobin
from rota.assignors.sticky import Prefer, sticky
from rota.assignors.weighted import weighted

_NAME = re.compile(r"(?P<name>[a-z-]+)(?:\((?P<options>[^()]*)\))?")


@dataclass(frozen=True, slots=True)
class Strategy:
    """An assignor as it is registered: its options by name, each with what reads its text."""

    function: Callable[..., Shares]
    options: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    weighs: bool = False
    """It takes the partitions' weights."""


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(f"{number} is below {least}")
        return number

    return read


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "range": Strategy(range_assignor),
        "roundrobin": Strategy(roundrobin),
        "sticky": Strategy(sticky, {"prefer": Prefer}),
        "cooperative-sticky": Strategy(cooperative_sticky, {"prefer": Prefer}),
        "copartitioned": Strategy(copartitioned),
        "redundant": Strategy(redundant, {"n": _at_least(1)}),
        "rack-aware": Strategy(rack_aware),
        "weighted": Strategy(weighted, {"max_moves": _at_least(0)}, weighs=True),
    }
)

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({name: each.function for name, each in STRATEGIES.items()})
"""The functions, with their options as they are by default."""


class UnknownAssignor(ValueError):
    """No assignor has that name, or not that option; the message lists those that exist."""


def assignor(name: str) -> Assignor:
    """The assignor called `name`, with the options in it: `sticky(prefer=stickiness)`. `UnknownAssignor` otherwise."""
    strategy, options = _parsed(name)
    return partial(strategy.function, **options) if options else strategy.function


def assign(
    name: str,
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
    partition_weights: PartitionWeights | None = None,
) -> Shares:
    """Who gets what by the assignor called `name`. The same input gives the same result, whatever the order of members.

    `cooperative-sticky` withholds what another member must give up first: the group rebalances once more after that.
    Racks, where they are given, are heeded by `rack-aware`, `range` and the sticky ones, weights by `weighted`.
    """
    if len({member.member_id for member in members}) != len(members):
        raise ValueError("two members have the same member_id")
    strategy, options = _parsed(name)
    if strategy.weighs:
        options = {**options, "partition_weights": partition_weights}
    return strategy.function(partitions_per_topic, members, partition_racks, **options)


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Strategy, Mapping[str, Any]]:
    """The strategy, and its options as arguments. A strategy with one option needs no name for it: `redundant(3)`."""
    match = _NAME.fullmatch(text)
    strategy = STRATEGIES.get(match["name"]) if match else None
    if match is None or strategy is None:
        raise UnknownAssignor(f"no assignor {text!r}; there are {', '.join(STRATEGIES)}")
    options: dict[str, Any] = {}
    for part in filter(None, map(str.strip, (match["options"] or "").split(","))):
        key, equals, value = map(str.strip, part.partition("="))
        if not equals and len(strategy.options) == 1:
            (key,), value = strategy.options, part
        try:
            options[key] = strategy.options[key](value)
        except (KeyError, ValueError):
            known = ", ".join(strategy.options) or "none"
            raise UnknownAssignor(f"{match['name']} has no option {part!r}; its options: {known}") from None
    return strategy, MappingProxyType(options)
