"""`rota groups drain`: wait until a member may leave."""

from __future__ import annotations

import time

from rota.cli.calls import Server
from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import print_notice
from rota.cli.times import until
from rota.protocol.messages import DescribeGroup, DescribeReply, DrainMember, DrainReply

_PAUSE_S = 1.0


def ask_to_leave(server: Server, group: str, member: str, max_leaving: int, wait_s: float, reason: str) -> None:
    """Ask until the member may leave; raise `CommandFailed` with 69 if it may not in time."""
    request = _request(server, group, member, max_leaving, reason)
    ends_at = time.monotonic() + wait_s
    while True:
        reply = server.call(request, DrainReply)
        if reply.granted:
            print_notice(f"{member} may leave {group}: the permission ends {until(reply.until_ms or 0)}")
            return
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise CommandFailed(f"{member} may not leave {group} now: {reply.why_not}", Exit.UNAVAILABLE)
        time.sleep(min(_PAUSE_S, left_s))


def _request(server: Server, group: str, member: str, max_leaving: int, reason: str) -> DrainMember:
    """Return the request for a member by its id, or by its instance id."""
    described = server.call(DescribeGroup(server.namespace, group), DescribeReply)
    is_instance = any(one.group_instance_id == member for one in described.members)
    member_id, instance_id = ("", member) if is_instance else (member, None)
    return DrainMember(server.namespace, group, member_id, instance_id, max_leaving, reason=reason)
