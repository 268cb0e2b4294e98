"""The client core: what a member should send next and by when, and until when it may act. Pure."""

from rota.core.membership.events import (
    Assigned,
    AssignmentFailed,
    Event,
    Failed,
    JoinedAsLeader,
    Left,
    Lost,
    MembershipRequest,
    Planned,
    Reachable,
    RebalanceStarted,
    Rejected,
    State,
    Unreachable,
)
from rota.core.membership.machine import Membership
from rota.core.membership.settings import MembershipSettings

__all__ = [
    "Assigned",
    "AssignmentFailed",
    "Event",
    "Failed",
    "JoinedAsLeader",
    "Left",
    "Lost",
    "Membership",
    "MembershipRequest",
    "MembershipSettings",
    "Planned",
    "Reachable",
    "RebalanceStarted",
    "Rejected",
    "State",
    "Unreachable",
]
