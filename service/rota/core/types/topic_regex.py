"""Regular expressions over names of topics, in RE2's syntax: matching takes time linear in the name (ADR 66)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

from rota.core.types.wire_format import MalformedMetadata

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
