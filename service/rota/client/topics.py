"""A consumer's subscription: names, or a regular expression over the registered names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import TYPE_CHECKING, TypeAlias

from rota.core.types.topic_regex import TopicRegex
from rota.core.types.wanted_topics import names_matcher

if TYPE_CHECKING:
    import re

Topics: TypeAlias = "str | Sequence[str] | re.Pattern[str] | TopicRegex | Mapping[str, int]"
"""A name, several, a compiled regular expression that matches whole names (`re`, or `re2`, whose matching takes linear
time), or names with their partition counts.
"""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Either names or a pattern, without the excluded names and prefixes (`audit-*`)."""

    names: tuple[str, ...]
    pattern: TopicRegex | None = None
    excepted: tuple[str, ...] = ()

    @classmethod
    def of(cls, topics: Topics, excepted: Sequence[str] = ()) -> TopicSelection:
        excepted = tuple(excepted)
        if not isinstance(topics, str | Iterable):
            return cls((), topics, excepted)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        return cls(tuple(filterfalse(names_matcher(excepted), names)), excepted=excepted)

    def among(self, registered: Iterable[str]) -> tuple[str, ...]:
        """Return the selected topics of the registered ones. Names are selected whether or not they exist yet."""
        if self.pattern is None:
            return self.names
        matching = (topic for topic in registered if self.pattern.fullmatch(topic))
        return tuple(sorted(filterfalse(names_matcher(self.excepted), matching)))
