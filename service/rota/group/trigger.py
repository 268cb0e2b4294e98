"""What makes a group rebalance, or leaves it empty: a code for programs, a sentence for people, and a member."""

from __future__ import annotations

from typing import NamedTuple

from rota.group.records import MemberExpired, MemberGone, MemberLeft, MemberRemoved


class Trigger(NamedTuple):
    """`cause` is a code of `rota.protocol.causes`; `by` is the member that caused it, empty where no single one did."""

    cause: str
    reason: str
    by: str = ""


def trigger_of(gone: MemberGone) -> Trigger:
    """The trigger of a group that is empty because its last member went as `gone` says."""
    match gone:
        case MemberExpired(member_id=member_id, reason=silent):
            return Trigger(gone.cause, f"member {member_id} expired: {silent}", member_id)
        case MemberLeft(member_id=member_id):
            return Trigger(gone.cause, f"member {member_id} left", member_id)
        case MemberRemoved(member_id=member_id):
            return Trigger(gone.cause, f"member {member_id} was removed", member_id)
