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
    remembers: bool = False
    """It asks members what they hold, or held last."""
    cooperative: bool = False
    """It withholds what another must give up first, so members hold on to the rest while they join (KIP-429)."""


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
        "sticky": Strategy(sticky, {"prefer": Prefer}, remembers=True),
        "cooperative-sticky": Strategy(cooperative_sticky, {"prefer": Prefer}, remembers=True, cooperative=True),
        "copartitioned": Strategy(copartitioned, remembers=True),
        "redundant": Strategy(redundant, {"n": _at_least(1)}, remembers=True),
        "rack-aware": Strategy(rack_aware, remembers=True),
        "weighted": Strategy(weighted, {"max_moves": _at_least(0)}, weighs=True, remembers=True),
    }
)

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({name: each.function for name, each in STRATEGIES.items()})
"""The functions, with their options as they are by default."""


class UnknownAssignor(ValueError):
    """No assignor has that name, or not that option; the message lists those that exist."""


def strategy(name: str) -> Strategy:
    """What is registered for `name`, whose options do not matter here but have to be right; or `UnknownAssignor`."""
    return _parsed(name)[0]


def assignor(name: str) -> Assignor:
    """The assignor called `name`, with the options in it: `sticky(prefer=stickiness)`. `UnknownAssignor` otherwise."""
    found, options = _parsed(name)
    return partial(found.function, **options) if options else found.function


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
    found, options = _parsed(name)
    if found.weighs:
        options = {**options, "partition_weights": partition_weights}
    return found.function(partitions_per_topic, members, partition_racks, **options)


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Strategy, Mapping[str, Any]]:
    """The strategy, and its options as arguments. A strategy with one option needs no name for it: `redundant(3)`."""
    match = _NAME.fullmatch(text)
    found = STRATEGIES.get(match["name"]) if match else None
    if match is None or found is None:
        raise UnknownAssignor(f"no assignor {text!r}; there are {', '.join(STRATEGIES)}")
    options: dict[str, Any] = {}
    for part in filter(None, map(str.strip, (match["options"] or "").split(","))):
        key, equals, value = map(str.strip, part.partition("="))
        if not equals and len(found.options) == 1:
            (key,), value = found.options, part
        try:
            options[key] = found.options[key](value)
        except (KeyError, ValueError):
            known = ", ".join(found.options) or "none"
            raise UnknownAssignor(f"{match['name']} has no option {part!r}; its options: {known}") from None
    return found, MappingProxyType(options)
