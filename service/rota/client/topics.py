"""What a consumer subscribes to: names, or a regular expression over the names that are registered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Topics: TypeAlias = "str | Sequence[str] | re.Pattern[str] | Mapping[str, int]"
"""A name, several, a compiled regular expression that matches whole names, or names with their partition counts."""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Either names or a pattern."""

    names: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, topics: Topics) -> TopicSelection:
        if isinstance(topics, re.Pattern):
            return cls((), topics)
        return cls((topics,) if isinstance(topics, str) else tuple(topics))

    def among(self, registered: Iterable[str]) -> tuple[str, ...]:
        """The topics that are meant, given those that there are. Names are meant whether or not they exist yet."""
        if self.pattern is None:
            return self.names
        return tuple(sorted(topic for topic in registered if self.pattern.fullmatch(topic)))
