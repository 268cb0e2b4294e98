"""How `rota lead` and `rota work` end, where the command's own exit code is not the answer."""

from __future__ import annotations

from typing import Final

GUARDIAN_LOST: Final = 70
"""EX_SOFTWARE: somebody killed the guardian; everything it ran was killed with it."""
GRANT_LOST: Final = 74
"""EX_IOERR: the grant was lost, so the command was stopped, or killed."""
NOT_GRANTED: Final = 75
"""EX_TEMPFAIL: nothing was granted in the time given; the command was never started."""
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128
"""And the signal's number."""

EXIT_MEANINGS: Final = {
    GUARDIAN_LOST: "the guardian was killed, and with it the command",
    GRANT_LOST: "the grant was lost, so the command was stopped or killed",
    NOT_GRANTED: "nothing was granted within --wait; the command was never started",
    CANNOT_EXECUTE: "the command cannot be executed",
    NOT_FOUND: "there is no such command",
}
