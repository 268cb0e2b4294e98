"""Topics as groups see them: what the registry says of them, and which of them members subscribe to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from rota.core.types.wire_format import MalformedMetadata

# --- facts ----------------------------------------------------------------------------------------

# What the registry knows of a topic, and what strategies read in its attributes.


_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the registry knows it."""

    partitions: int
    attributes: Mapping[str, str] = field(default_factory=dict)

    def racks(self) -> list[list[str]]:
        """The attribute `racks`: those of partition 0, a comma, those of partition 1, …; several are joined by `+`."""
        text = self.attributes.get("racks", "")
        return [[rack for rack in part.strip().split("+") if rack] for part in text.split(",")] if text else []

    def weights(self) -> list[float]:
        """The attribute `weights`: numbers with commas between them. One that is no weight counts as 1."""
        text = self.attributes.get("weights", "")
        return [_weight(part) for part in text.split(",")] if text else []


def partition_counts(topics: Mapping[str, TopicFacts]) -> dict[str, int]:
    """How many partitions each topic has, as strategies take it."""
    return {name: facts.partitions for name, facts in topics.items()}


def partition_racks(topics: Mapping[str, TopicFacts]) -> dict[str, list[list[str]]]:
    """The racks of the partitions, of topics with racks in their registry entry."""
    return {name: racks for name, facts in topics.items() if (racks := facts.racks())}


def partition_weights(topics: Mapping[str, TopicFacts]) -> dict[str, list[float]]:
    """The weights of the partitions, of topics with weights in their registry entry."""
    return {name: weights for name, facts in topics.items() if (weights := facts.weights())}


def describe_changes(before: Mapping[str, TopicFacts], after: Mapping[str, TopicFacts]) -> str:
    """The difference in a few words, for reasons: `docs 64 → 96, audit-2 0 → 4`; empty if there is none."""
    changed = [
        f"{name} {old} → {new}" if old != new else f"{name} has other attributes"
        for name in sorted({*before, *after})
        for old, new in [(_partitions(before, name), _partitions(after, name))]
        if before.get(name) != after.get(name)
    ]
    more = [f"{len(changed) - _MOST_NAMED} more"] if len(changed) > _MOST_NAMED else []
    return ", ".join((*changed[:_MOST_NAMED], *more))


def _partitions(topics: Mapping[str, TopicFacts], name: str) -> int:
    return topics[name].partitions if name in topics else 0


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 1.0
    return weight if 0 <= weight < float("inf") else 1.0


# --- regular expressions --------------------------------------------------------------------------

# Regular expressions over names of topics, in RE2's syntax: matching takes time linear in the name (ADR 66).


MAX_REGEX_CHARS: Final = 1_000
MAX_REGEXES: Final = 32
"""So many different ones the members of a group may have, where the coordinator matches them."""
_MAX_MEMORY: Final = 1024 * 1024
"""Of one compiled expression, in bytes: RE2 rejects those that need more."""


class TopicRegex(Protocol):
    """A compiled expression; `re.Pattern` has the same method."""

    def fullmatch(self, name: str, /) -> object: ...


def topic_regex(text: object) -> TopicRegex:
    """Compile an expression that matches whole names; `MalformedMetadata` says why it is none."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_REGEX_CHARS:
        raise MalformedMetadata(f'"topic_regex" must be a text of 1 to {MAX_REGEX_CHARS} characters')
    return _compiled(text)


@lru_cache(maxsize=1_024)
def _compiled(text: str) -> TopicRegex:
    try:
        import re2
    except ImportError:
        raise MalformedMetadata(
            "regular expressions need the package google-re2, which is not installed here: pip install 'rota[patterns]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        compiled: TopicRegex = re2.compile(text, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise MalformedMetadata(f'"topic_regex" is no regular expression of RE2: {text}') from None
    except (UnicodeEncodeError, ValueError) as error:
        raise MalformedMetadata(f'"topic_regex" is no regular expression of RE2: {error}') from None
    return compiled


# --- subscriptions --------------------------------------------------------------------------------

# What members subscribe to: names of topics, beginnings of names, and regular expressions.


PATTERN_END: Final = "*"


class WantedTopics(NamedTuple):
    """Names, of which those that end in `*` are beginnings, and a regular expression; `excepted` are names, too."""

    names: frozenset[str]
    regex: str | None = None
    excepted: frozenset[str] = frozenset()

    @property
    def has_patterns(self) -> bool:
        return self.regex is not None or any(name.endswith(PATTERN_END) for name in self.names)


def topic_matcher(wanted: Sequence[WantedTopics]) -> Callable[[str], bool]:
    """Whether one of them means a topic; `MalformedMetadata` where their regular expressions are too many."""
    regexes = {each.regex for each in wanted if each.regex is not None}
    if len(regexes) > MAX_REGEXES:
        raise MalformedMetadata(f"members have {len(regexes)} different regular expressions, at most {MAX_REGEXES}")
    by_excepted: dict[frozenset[str], list[WantedTopics]] = {}
    for each in wanted:
        by_excepted.setdefault(each.excepted, []).append(each)
    matchers = [(_any_of(those), names_matcher(excepted)) for excepted, those in by_excepted.items()]
    return lambda topic: any(means(topic) and not excepts(topic) for means, excepts in matchers)


def names_matcher(names: Collection[str]) -> Callable[[str], bool]:
    """Whether a topic is one of the names, or begins as one of those that end in `*`."""
    beginnings = tuple(name[:-1] for name in sorted(names) if name.endswith(PATTERN_END))
    return lambda topic: topic in names or topic.startswith(beginnings)


def _any_of(wanted: Sequence[WantedTopics]) -> Callable[[str], bool]:
    """Return a function that says whether one of them means a topic, without regard to exceptions."""
    is_named = names_matcher(frozenset[str]().union(*(each.names for each in wanted)))
    matches = [topic_regex(regex).fullmatch for regex in sorted({each.regex for each in wanted if each.regex})]
    return lambda topic: is_named(topic) or any(match(topic) for match in matches)
