"""What members subscribe to: names of topics, beginnings of names, and regular expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rota.types.topic_regex import MAX_REGEXES, topic_regex
from rota.types.wire_format import MalformedMetadata

PATTERN_END: Final = "*"


class WantedTopics(NamedTuple):
    """Names, of which those that end in `*` are beginnings, and a regular expression."""

    names: frozenset[str]
    regex: str | None = None

    @property
    def has_patterns(self) -> bool:
        return self.regex is not None or any(name.endswith(PATTERN_END) for name in self.names)


def topic_matcher(wanted: Sequence[WantedTopics]) -> Callable[[str], bool]:
    """Whether one of them means a topic; `MalformedMetadata` where their regular expressions are too many."""
    names = frozenset[str]().union(*(each.names for each in wanted))
    beginnings = tuple(name[:-1] for name in sorted(names) if name.endswith(PATTERN_END))
    regexes = sorted({each.regex for each in wanted if each.regex is not None})
    if len(regexes) > MAX_REGEXES:
        raise MalformedMetadata(f"members have {len(regexes)} different regular expressions, at most {MAX_REGEXES}")
    matches = [topic_regex(regex).fullmatch for regex in regexes]
    return lambda topic: topic in names or topic.startswith(beginnings) or any(match(topic) for match in matches)
