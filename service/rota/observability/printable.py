"""Text that members and administrators sent, as it may stand in a line of a log or at a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text on one line, and harmless: unprintable characters become escapes, such as `\n` or `\x1b`.

    A reason is free text. It must not begin a line of its own, nor tell a terminal what to do.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
