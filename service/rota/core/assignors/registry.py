"""The assignors by the name that members list among their protocols, options included: `redundant(n=3)`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from rota.core.assignors.model import GroupSubscription, MemberSubscription, PartitionRacks, PartitionWeights, Shares
from rota.core.assignors.numbering import withheld
from rota.core.assignors.own import GroupAssignment, PartitionStrategy, own_assignment
from rota.core.assignors.placement import (
    active_copies,
    cooperative_redundant,
    copartitioned,
    rack_aware,
    redundant,
    weighted,
)
from rota.core.assignors.range import range_assignor, roundrobin
from rota.core.assignors.sticky import Prefer, cooperative_sticky, sticky

# --- several strategies in one group --------------------------------------------------------------

# `by-topic`: several strategies within one group, each for topics of its own.


Rules: TypeAlias = "tuple[Rule, ...]"
_PATTERN_END = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """The topics of this name, or that begin so where it ends in `*`, are assigned by this strategy."""

    topics: str
    strategy: str

    def matches(self, topic: str) -> bool:
        beginning = self.topics.removesuffix(_PATTERN_END)
        return topic == beginning if beginning == self.topics else topic.startswith(beginning)


def by_topic(group: GroupSubscription, *, rules: Rules, cooperative: bool = False) -> Shares:
    """Assign the topics of each rule by its strategy, which sees these topics alone.

    The first rule that matches a topic counts. Rules of one strategy are assigned together: topics that
    `copartitioned` shall keep side by side may be named by several. A topic that no rule matches has no member.
    `cooperative`: a partition that moves has no member until its holder gave it up.
    """
    topics_by: dict[str, set[str]] = {}
    for topic in group.partitions_per_topic:
        if found := next((rule for rule in rules if rule.matches(topic)), None):
            topics_by.setdefault(found.strategy, set()).add(topic)
    shares: Shares = {member.member_id: [] for member in group.members}
    for name in sorted(topics_by):
        topics = topics_by[name]
        members = [
            replace(
                member,
                topics=[topic for topic in member.topics if topic in topics],
                owned_partitions=[place for place in member.owned_partitions if place.topic in topics],
            )
            for member in group.members
        ]
        counts = {topic: group.partitions_per_topic[topic] for topic in topics}
        narrowed = replace(group, partitions_per_topic=counts, members=members)
        assigned = _assigned(name, narrowed).shares
        if cooperative and not strategy(name).cooperative:
            assigned = withheld(narrowed, assigned)
        for member_id, share in assigned.items():
            shares[member_id] += share
    return shares


# --- all strategies -------------------------------------------------------------------------------

# Options are in brackets behind the name.


ENTRY_POINT_GROUP: Final = "rota.strategies"
"""Packages offer strategies of their own under it, to SDK and server."""

_NAME = re.compile(r"(?P<name>[a-z][a-z-]*)(?:\((?P<options>.*)\))?")
_BETWEEN_RULES = re.compile(r",(?![^()]*\))")
"""A comma that is not inside of the options of a rule's strategy."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """An assignor as it is registered: its options by name, each with what reads its text."""

    function: Callable[..., Shares] | None = None
    """None for the user's own."""
    options: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    weighs: bool = False
    """It looks at the partitions' weights."""
    remembers: bool = False
    """It asks members what they hold, or held last."""
    cooperative: bool = False
    """It withholds what another must give up first, so members hold on to the rest while they join (KIP-429)."""
    copies: bool = False
    """It assigns a partition to several members."""
    has_rules: bool = False
    """Its options are rules: which topics are assigned by which of the others."""
    own: PartitionStrategy | None = None
    """It is the user's own."""


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(f"{number} is below {least}")
        return number

    return read


_BUILT_IN: Mapping[str, Strategy] = MappingProxyType(
    {
        "range": Strategy(range_assignor),
        "roundrobin": Strategy(roundrobin),
        "sticky": Strategy(sticky, {"prefer": Prefer}, remembers=True),
        "cooperative-sticky": Strategy(cooperative_sticky, {"prefer": Prefer}, remembers=True, cooperative=True),
        "copartitioned": Strategy(copartitioned, remembers=True),
        "redundant": Strategy(redundant, {"n": _at_least(1)}, remembers=True, copies=True),
        "cooperative-redundant": Strategy(
            cooperative_redundant, {"n": _at_least(2)}, remembers=True, cooperative=True, copies=True
        ),
        "rack-aware": Strategy(rack_aware, remembers=True),
        "weighted": Strategy(weighted, {"max_moves": _at_least(0)}, weighs=True, remembers=True),
        "by-topic": Strategy(by_topic, weighs=True, remembers=True, has_rules=True),
        "cooperative-by-topic": Strategy(
            partial(by_topic, cooperative=True), weighs=True, remembers=True, cooperative=True, has_rules=True
        ),
    }
)
_KNOWN: dict[str, Strategy] = dict(_BUILT_IN)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(_KNOWN)
"""All strategies that this process knows: the built-in ones, and those that were registered."""


class BrokenStrategy(ValueError):
    """An object cannot be registered as a strategy; the message says why."""


def register_strategy(own: PartitionStrategy) -> None:
    """Make a strategy of the user's own known, under its name, to this process: SDK and server alike.

    Registering the same object twice is harmless; `BrokenStrategy` for another one of the same name, and for what lacks
    a part of `PartitionStrategy`.
    """
    if fault := _fault_of(own):
        raise BrokenStrategy(fault)
    known = _KNOWN.get(own.name)
    if known is not None and known.own is not own:
        raise BrokenStrategy(f"there is a strategy {own.name!r} already")
    _KNOWN[own.name] = Strategy(
        remembers=True,
        weighs=True,
        cooperative=own.cooperative,
        copies=not own.exclusive,
        own=own,
    )
    _parsed.cache_clear()


def register_entry_points(found: Iterable[EntryPoint]) -> list[str]:
    """Register the strategies of other packages, each a class or an object; returns the names of the new ones.

    An object of the same class that the program registered itself stays.
    """
    names = []
    for point in found:
        loaded = point.load()
        own = loaded() if isinstance(loaded, type) else loaded
        known = _KNOWN.get(getattr(own, "name", ""))
        if known is None or type(known.own) is not type(own):
            register_strategy(own)
            names.append(own.name)
    return names


def _fault_of(own: PartitionStrategy) -> str:
    """Why an object is no strategy; empty if it is one. Objects of other packages may be anything."""
    name = getattr(own, "name", None)
    if not isinstance(name, str) or not (match := _NAME.fullmatch(name)) or match["options"] is not None:
        return f"the name of a strategy is lower-case letters and hyphens, not {name!r}"
    for part in ("assign", "subscription_user_data", "on_assignment"):
        if not callable(getattr(own, part, None)):
            return f"strategy {name!r} has no method {part!r}: is it a PartitionStrategy?"
    if not all(isinstance(getattr(own, part, None), bool) for part in ("cooperative", "exclusive")):
        return f"strategy {name!r}: `cooperative` and `exclusive` must be True or False"
    if own.cooperative and not own.exclusive:
        return f"strategy {name!r} cannot be cooperative: a copy is withheld from no member"
    return ""


class UnknownAssignor(ValueError):
    """No assignor has that name, or not that option; the message lists those that exist."""


def strategy(name: str) -> Strategy:
    """The registered assignor of `name`; its options are not used here but must be valid. Or `UnknownAssignor`."""
    return _parsed(name)[0]


def assign(
    name: str,
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
    partition_weights: PartitionWeights | None = None,
) -> Shares:
    """The assignment by the assignor `name`. The same input gives the same result, whatever the order of members.

    `cooperative-sticky` withholds what another member must give up first: the group rebalances once more after that.
    Racks, where they are given, are used by `rack-aware`, `range` and the sticky ones, weights by `weighted`.
    """
    group = GroupSubscription(partitions_per_topic, members, partition_racks or {}, partition_weights or {})
    return {member_id: list(share) for member_id, share in _assigned(name, group).shares.items()}


def assign_group(name: str, group: GroupSubscription) -> GroupAssignment:
    """The assignment as `assign` makes it, with user data of strategies of the user's own, and the roles of copies."""
    assigned = _assigned(name, group)
    if not has_copies(name):
        return assigned
    active = active_copies(group.members, assigned.shares, withholds=strategy(name).cooperative)
    return replace(assigned, active=active)


def _assigned(name: str, group: GroupSubscription) -> GroupAssignment:
    if len({member.member_id for member in group.members}) != len(group.members):
        raise ValueError("two members have the same member_id")
    found, options = _parsed(name)
    if found.own is not None:
        return own_assignment(found.own, group)
    assert found.function is not None
    return GroupAssignment(found.function(group, **options))


def has_copies(name: str) -> bool:
    """Whether the strategy assigns a partition to several members, by a rule of it for example."""
    found, options = _parsed(name)
    return found.copies or any(strategy(rule.strategy).copies for rule in options.get("rules", ()))


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Strategy, Mapping[str, Any]]:
    """The strategy, and its options as arguments. A strategy with one option needs no name for it: `redundant(3)`."""
    match = _NAME.fullmatch(text)
    found = STRATEGIES.get(match["name"]) if match else None
    if match is None or found is None:
        raise UnknownAssignor(f"no assignor {text!r}; there are {', '.join(STRATEGIES)}")
    if found.has_rules:
        return found, MappingProxyType({"rules": _read_rules(match["name"], found, match["options"] or "")})
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


def _read_rules(name: str, by_rules: Strategy, text: str) -> Rules:
    """`orders=copartitioned, payments=redundant(2), *=roundrobin`; or `UnknownAssignor`."""
    rules = []
    for part in filter(None, map(str.strip, _BETWEEN_RULES.split(text))):
        topics, equals, chosen = map(str.strip, part.partition("="))
        if not (topics and equals) or chosen.partition("(")[0] not in _BUILT_IN:
            raise UnknownAssignor(
                f"{name} has rules such as `orders=range` or `log-*=redundant(2)`, with built-in strategies; "
                f"this is none: {part!r}"
            )
        known = strategy(chosen)
        if known.has_rules:
            raise UnknownAssignor(f"{name} takes no rules inside of rules: {part!r}")
        if known.cooperative and not by_rules.cooperative:
            raise UnknownAssignor(f"{name} stops all members: use cooperative-{name} for the rule {part!r}")
        if known.copies and by_rules.cooperative and not known.cooperative:
            raise UnknownAssignor(f"{name} cannot withhold copies: use cooperative-redundant for the rule {part!r}")
        rules.append(Rule(topics, chosen))
    if not rules:
        raise UnknownAssignor(f"{name} needs rules: `{name}(orders=copartitioned, *=roundrobin)`")
    return tuple(rules)
