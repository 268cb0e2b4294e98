"""The troubles that a group can have, the worst first: its owner names them, programs rank groups by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from rota.protocol.messages import Trouble

LATELY_MS = 600_000
"""Changes of a group count for so long."""


class TroubleKind(StrEnum):
    """A kind is never renamed: alerts hold it. A reader must expect kinds of later releases."""

    LEADERLESS = "leaderless"
    STUCK = "stuck"
    UNOWNED = "unowned"
    CONTESTED = "contested"
    FLAPPING = "flapping"
    SILENT = "silent"


TROUBLES: Mapping[TroubleKind, str] = {
    TroubleKind.LEADERLESS: "elections without a leader, because the last member expired",
    TroubleKind.STUCK: "groups whose rebalance waits for a member that does not join or assign",
    TroubleKind.UNOWNED: "partitions of registered topics that no member owns, and groups whose last member expired",
    TroubleKind.CONTESTED: "static members that were taken over several times within 10 minutes",
    TroubleKind.FLAPPING: "groups that rebalance too often",
    TroubleKind.SILENT: "members that hold a share or lead, and missed two heartbeats",
}
"""What is counted for each kind, the worst first."""
_HARM = {kind.value: number for number, kind in enumerate(TroubleKind)}


def harm(troubles: Sequence[Trouble]) -> tuple[int, int]:
    """A key to sort groups by: the worst trouble first, then the largest; groups without trouble last."""
    worst = min(troubles, key=lambda each: _HARM.get(each.kind, len(_HARM)), default=None)
    return (len(_HARM) + 1, 0) if worst is None else (_HARM.get(worst.kind, len(_HARM)), -worst.number)
