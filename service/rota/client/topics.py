"""What a consumer subscribes to: names, or a regular expression over the names that are registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rota.types.topic_regex import TopicRegex

if TYPE_CHECKING:
    import re

Topics: TypeAlias = "str | Sequence[str] | re.Pattern[str] | TopicRegex | Mapping[str, int]"
"""A name, several, a compiled regular expression that matches whole names (`re`, or `re2`, whose matching takes linear
time), or names with their partition counts.
"""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Either names or a pattern."""

    names: tuple[str, ...]
    pattern: TopicRegex | None = None

    @classmethod
    def of(cls, topics: Topics) -> TopicSelection:
        if isinstance(topics, str):
            return cls((topics,))
        return cls(tuple(topics)) if isinstance(topics, Iterable) else cls((), topics)

    def among(self, registered: Iterable[str]) -> tuple[str, ...]:
        """The topics that are meant, given those that there are. Names are meant whether or not they exist yet."""
        if self.pattern is None:
            return self.names
        return tuple(sorted(topic for topic in registered if self.pattern.fullmatch(topic)))
