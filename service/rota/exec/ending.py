"""How `rota lead` and `rota work` end, where the command's own exit code is not the answer."""

from __future__ import annotations

from typing import Final

UNKNOWN_TOPIC: Final = 3
"""A topic is not registered, so there is no share of it."""
UNAVAILABLE: Final = 69
"""EX_UNAVAILABLE: the coordinator does not serve this member: it is not known whether another holds the grant."""
GUARDIAN_LOST: Final = 70
"""EX_SOFTWARE: the guardian was killed; everything it ran was killed with it."""
GRANT_LOST: Final = 74
"""EX_IOERR: the grant was lost, so the command was stopped, or killed."""
NOT_GRANTED: Final = 75
"""EX_TEMPFAIL: other members held it for all the time given, or its occasion is done; the command was never started."""
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128
"""And the signal's number."""

EXIT_MEANINGS: Final = {
    UNKNOWN_TOPIC: "with --wait: a topic is not registered; the command was never started",
    UNAVAILABLE: "with --wait: no server answers, or it rejects this member for now; the command was never started",
    GUARDIAN_LOST: "the guardian was killed, and with it the command",
    GRANT_LOST: "the grant was lost, so the command was stopped or killed",
    NOT_GRANTED: "with --wait: other members hold it; with --once-per: it has run; the command was never started",
    CANNOT_EXECUTE: "the command cannot be executed",
    NOT_FOUND: "there is no such command",
}
