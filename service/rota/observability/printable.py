"""Text that members and administrators sent, as it may stand in a line of a log or at a terminal."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    r"""The text on one line, and harmless: unprintable characters become escapes, such as `\n` or `\x1b`.

    A reason is free text. It must not begin a line of its own, nor tell a terminal what to do.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_json(text: str) -> str:
    """A JSON document as `json.dumps` writes it, with each unprintable character that it left as an escape of JSON."""
    return "\n".join(
        line if line.isprintable() else "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)
        for line in text.split("\n")
    )
