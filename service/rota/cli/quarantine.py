"""`rota groups quarantine`: the rule of a group, and its quarantined units."""

from __future__ import annotations

from rota.cli.calls import Server
from rota.cli.output import print_notice
from rota.protocol.messages import DescribeGroup, DescribeReply, QuarantineGroup, QuarantineReply
from rota.server.observability.printable import printable


def print_quarantine(server: Server, group: str) -> None:
    """Print the quarantined units, one per line."""
    described = server.call(DescribeGroup(server.namespace, group), DescribeReply)
    for unit in described.quarantined:
        print(printable(unit))
    if not described.quarantined:
        print_notice("no unit is quarantined" if described.quarantine_after else f"group {group} has no quarantine")


def set_rule(
    server: Server, group: str, after: int | None, max_units: int | None, release_after_ms: int | None, reason: str
) -> None:
    """Change the given parts of the rule."""
    request = QuarantineGroup(server.namespace, group, after, max_units, release_after_ms, reason=reason)
    reply = server.call(request, QuarantineReply)
    if not reply.after_falls:
        print_notice(f"group {group} quarantines no unit any more")
        return
    ends = f"for {reply.release_after_ms // 1000} s" if reply.release_after_ms else "until it is released"
    print_notice(
        f"group {group} quarantines a unit after {reply.after_falls} holders in a row failed with it, {ends}; at most "
        f"{reply.max_units} at once"
    )
