"""Exit codes of `rota lead` and `rota work` for other ends than that of the command."""

from __future__ import annotations

from typing import Final

UNKNOWN_TOPIC: Final = 3
"""A topic is not registered, so it has no shares."""
UNAVAILABLE: Final = 69
"""EX_UNAVAILABLE: the coordinator does not serve this member, so it is unknown whether another member holds
the grant.
"""
GUARDIAN_LOST: Final = 70
"""EX_SOFTWARE: the guardian was killed, and with it all processes that it ran."""
GRANT_LOST: Final = 74
"""EX_IOERR: the grant was lost, so the command was stopped, or killed."""
NOT_GRANTED: Final = 75
"""EX_TEMPFAIL: other members held the grant during the whole wait, or its occasion is done; the command was not
started.
"""
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128
"""The base to which a signal's number is added."""

EXIT_MEANINGS: Final = {
    UNKNOWN_TOPIC: "with --wait: a topic is not registered; the command was never started",
    UNAVAILABLE: "with --wait: no server answers, or it rejects this member temporarily; the command was never started",
    GUARDIAN_LOST: "the guardian was killed, and with it the command",
    GRANT_LOST: "the grant was lost, so the command was stopped or killed",
    NOT_GRANTED: "with --wait: other members hold it; with --once-per: it has run; the command was never started",
    CANNOT_EXECUTE: "the command cannot be executed",
    NOT_FOUND: "the command was not found",
}
