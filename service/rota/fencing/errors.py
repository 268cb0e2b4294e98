"""Errors of fences."""

from __future__ import annotations


class FenceRefused(Exception):
    """The write is rejected; the message says why."""


class InvalidToken(FenceRefused):
    """The token was not signed with one of these keys, or has expired."""


class StaleToken(FenceRefused):
    """A newer generation has already written."""


class StaleTransaction(FenceRefused):
    """The generation ended before the transaction: no change was committed."""
