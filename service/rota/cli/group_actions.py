"""`rota groups`: what an administrator does to a group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.completion import complete_member_id
from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import Group, Member, Reason, Yes, a_number, confirm
from rota.cli.output import print_notice
from rota.cli.times import milliseconds, until
from rota.protocol.ids import check_group_id
from rota.server.observability.timeline import printable

if TYPE_CHECKING:
    from rota.cli.calls import Server

_DRAIN_PAUSE_S = 1.0


def delete(server: Server, group: Group, reason: Reason = "", yes: Yes = False) -> None:
    """Delete a group that has no members, and its offsets. If it is created again, its generations continue."""
    from rota.protocol.messages import DeleteGroup, DeleteGroupReply

    check_group_id(group)
    confirm(f"Delete group {group} of namespace {server.namespace} and its offsets?", yes=yes)
    server.call(DeleteGroup(server.namespace, group, reason), DeleteGroupReply)
    print_notice(f"group {group} is deleted")


def rebalance(
    server: Server,
    group: Group,
    step_down: Annotated[bool, typer.Option("--step-down", help="Let another member lead, if there is one.")] = False,
    reason: Reason = "",
) -> None:
    """Start a rebalance of a group: no member is removed, and all members are notified at once."""
    from rota.protocol.messages import RebalanceGroup, RebalanceReply

    reply = server.call(RebalanceGroup(server.namespace, group, reason, step_down), RebalanceReply)
    print_notice(f"generation {reply.generation_id} of {group} ends")


def freeze(
    server: Server,
    group: Group,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="Such as 90s, 20m or 2h, from now on.")],
    reason: Reason = "",
) -> None:
    """Postpone rebalances that can wait: new members, changes of topics, and candidates of a higher priority.

    Members that leave or expire still cause one.
    """
    from rota.protocol.messages import FreezeGroup, FreezeReply

    reply = server.call(FreezeGroup(server.namespace, group, milliseconds(for_), reason), FreezeReply)
    print_notice(f"group {group} is frozen; the freeze ends {until(reply.frozen_until_ms or 0)}")


def unfreeze(server: Server, group: Group, reason: Reason = "") -> None:
    """End a freeze early: postponed rebalances start."""
    from rota.protocol.messages import FreezeGroup, FreezeReply

    server.call(FreezeGroup(server.namespace, group, 0, reason), FreezeReply)
    print_notice(f"group {group} is not frozen")


def quarantine(
    server: Server,
    group: Group,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, metavar="N", help="After N failures of its holders in a row; 0 ends the rule."),
    ] = None,
    max_units: Annotated[int | None, typer.Option("--max-units", min=1, help="Maximum number of units.")] = None,
    release_after: Annotated[
        str | None, typer.Option("--release-after", metavar="TIME", help="Such as 90s, 20m or 2h; 0s: by hand.")
    ] = None,
    reason: Reason = "",
) -> None:
    """Print the quarantined units of a group, one a line, or set the rule.

    A unit of work is not assigned any more after N holders in a row expired or failed while they held it.
    """
    from rota.protocol.messages import DescribeGroup, DescribeReply, QuarantineGroup, QuarantineReply

    if (after, max_units, release_after) == (None, None, None):
        described = server.call(DescribeGroup(server.namespace, group), DescribeReply)
        for unit in described.quarantined:
            print(printable(unit))
        if not described.quarantined:
            print_notice("no unit is quarantined" if described.quarantine_after else f"group {group} has no quarantine")
        return
    release_after_ms = None if release_after is None else milliseconds(release_after)
    rule = QuarantineGroup(server.namespace, group, after, max_units, release_after_ms, reason=reason)
    reply = server.call(rule, QuarantineReply)
    if not reply.after_falls:
        print_notice(f"group {group} quarantines no unit any more")
        return
    ends = f"for {reply.release_after_ms // 1000} s" if reply.release_after_ms else "until it is released"
    print_notice(
        f"group {group} quarantines a unit after {reply.after_falls} holders in a row failed with it, {ends}; at most "
        f"{reply.max_units} at once"
    )


def release(
    server: Server,
    group: Group,
    units: Annotated[list[str], typer.Argument(metavar="UNIT...", help="Quarantined units, such as docs/3.")],
    reason: Reason = "",
) -> None:
    """Release units from quarantine: the group rebalances, and assignments include them again."""
    from rota.protocol.messages import QuarantineGroup, QuarantineReply

    server.call(QuarantineGroup(server.namespace, group, release=tuple(units), reason=reason), QuarantineReply)
    print_notice(f"released: {', '.join(units)}")


def drain(
    server: Server,
    group: Group,
    member_id: Member,
    max_leaving: Annotated[int, typer.Option("--max-leaving", min=1, help="Maximum number of leaving members.")] = 1,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, callback=a_number, metavar="SECONDS", help="Retry for this time; then end with 69."
        ),
    ] = 0,
    reason: Reason = "",
) -> None:
    """Ask whether a member may leave now, for a hook that then stops its process. The member is not removed."""
    from rota.protocol.messages import DescribeGroup, DescribeReply, DrainMember, DrainReply

    described = server.call(DescribeGroup(server.namespace, group), DescribeReply)
    is_instance = any(one.group_instance_id == member_id for one in described.members)
    named, instance_id = ("", member_id) if is_instance else (member_id, None)
    request = DrainMember(server.namespace, group, named, instance_id, max_leaving, reason=reason)
    ends_at = time.monotonic() + wait
    while not (reply := server.call(request, DrainReply)).granted:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise CommandFailed(f"{member_id} may not leave {group} now: {reply.why_not}", Exit.UNAVAILABLE)
        time.sleep(min(_DRAIN_PAUSE_S, left_s))
    print_notice(f"{member_id} may leave {group}: the permission ends {until(reply.until_ms or 0)}")


def remove_member(
    server: Server,
    group: Group,
    member_id: Annotated[
        str, typer.Argument(metavar="MEMBER", help="The member's id.", autocompletion=complete_member_id)
    ],
    reason: Reason = "",
    yes: Yes = False,
) -> None:
    """Remove a member: its share moves to the others at once, and its next call is rejected."""
    from rota.protocol.messages import LeaveGroup, LeaveReply, LeavingMember

    check_group_id(group)
    confirm(f"Remove member {printable(member_id)} from group {group} of namespace {server.namespace}?", yes=yes)
    leaving = (LeavingMember(member_id, None, reason),)
    server.call(LeaveGroup(server.namespace, group, leaving, by_admin=True), LeaveReply)
    print_notice(f"{member_id} is removed from {group}")
