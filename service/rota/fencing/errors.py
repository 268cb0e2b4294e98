"""Why a fence refuses."""

from __future__ import annotations


class FenceRefused(Exception):
    """The write is rejected; the message says why."""


class InvalidToken(FenceRefused):
    """Not a token that one of these keys has signed, or one that has run out."""


class StaleToken(FenceRefused):
    """A newer generation has been here."""


class StaleTransaction(FenceRefused):
    """The generation was over before the transaction was: nothing of it was committed."""
