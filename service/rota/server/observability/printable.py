"""Texts of members and administrators, made safe for a log line or a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text on one line, with unprintable characters as escapes, such as `\n` or `\x1b`.

    A reason is free text. It must not start a new line or control a terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
