"""RebalanceGroup: an administrator has a group agree anew, by another leader where that is asked. Not in Kafka."""

from __future__ import annotations

from rota.group.rebalance import start_rebalance
from rota.group.result import Result
from rota.group.state import EMPTY, PREPARING_REBALANCE, Group
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import RebalanceGroup, RebalanceReply


def force_rebalance(result: Result, group: Group, request: RebalanceGroup, call: int, limits: Limits) -> None:
    """Start a join phase, or go along with the one that is under way. Nobody is removed by it."""
    leader_id = group.generation_leader_id
    if group.state is EMPTY:
        result.reply(call, RebalanceReply(ErrorCode.INVALID_REQUEST, "the group has no members"))
        return
    if request.step_down and leader_id is None:
        result.reply(call, RebalanceReply(ErrorCode.INVALID_REQUEST, "nobody leads the group"))
        return
    asked = f"leader {leader_id} was asked to step down" if request.step_down else "a rebalance was asked for"
    if request.step_down:
        group.passed_over = leader_id
    if group.state is not PREPARING_REBALANCE:
        start_rebalance(result, group, limits, f"{asked}: {request.reason}" if request.reason else asked, "")
    result.reply(call, RebalanceReply(generation_id=group.generation_id))
