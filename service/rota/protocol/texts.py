"""Texts that a program writes and a coordinator bounds: the sender cuts them, so that a long one costs no call."""

from __future__ import annotations

REASON_MAX_CHARS = 255
"""Reasons of joins and leaves: Kafka's clients cut them at the same length."""
ERROR_MAX_CHARS = 1_000
"""Why a leader could not assign; `Limits.reason_max_chars` is what a coordinator accepts."""
TOPICS_CHANGED = "the topics changed"
"""The reason of a leader that joins again because topics or their partition counts changed; details follow a colon."""
_AND_HOW = f"{TOPICS_CHANGED}: "
_ELLIPSIS = "…"


def storable(text: str) -> str:
    """The text in a form that every transport can encode and every store can hold.

    No transport has lone surrogates, and Postgres has no NUL. One such text in an append makes all of it fail.
    """
    return text if text.isprintable() else text.encode("utf-8", "replace").decode().replace("\0", "?")


def shortened(text: str, max_chars: int = REASON_MAX_CHARS) -> str:
    """At most `max_chars` characters of `text`, in the form of `storable`."""
    text = storable(text)
    return text if len(text) <= max_chars else text[: max_chars - 1] + _ELLIPSIS


def is_of_topics(reason: str) -> bool:
    """Whether a leader gives changed topics as the reason of its join."""
    return reason == TOPICS_CHANGED or reason.startswith(_AND_HOW)
