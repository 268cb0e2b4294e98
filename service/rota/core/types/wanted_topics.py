"""What members subscribe to: names of topics, beginnings of names, and regular expressions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from rota.core.types.topic_regex import MAX_REGEXES, topic_regex
from rota.core.types.wire_format import MalformedMetadata

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
    """Whether one of them means a topic, exceptions aside."""
    is_named = names_matcher(frozenset[str]().union(*(each.names for each in wanted)))
    matches = [topic_regex(regex).fullmatch for regex in sorted({each.regex for each in wanted if each.regex})]
    return lambda topic: is_named(topic) or any(match(topic) for match in matches)
