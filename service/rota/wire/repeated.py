"""Members of a stream say the same, one after another, and get the same: that is read once, and written once."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_group_id, check_member_id
from rota.protocol.messages import JoinGroup, JoinReply, Reply, SyncGroup, SyncReply
from rota.wire.rpcs import Rpc


def _copying(request: Any) -> Callable[[Any, str, str], Any]:
    """A request like the given one, of another member and group. `replace` takes longer."""
    names = list(request.__struct_fields__)
    values_of, group, member = attrgetter(*names), names.index("group_id"), names.index("member_id")

    def copy(said: Any, group_id: str, member_id: str) -> Any:
        values = list(values_of(said))
        values[group], values[member] = group_id, member_id
        return request(*values)

    return copy


_COPYING: dict[type, Callable[[Any, str, str], Any]] = {
    request: _copying(request) for request in (JoinGroup, SyncGroup)
}


class Repeated:
    """The last join or sync of one message. Members of a program mostly differ in their ids and groups alone."""

    __slots__ = ("_request", "_rpc", "_said")

    def __init__(self) -> None:
        self._rpc: Rpc | None = None
        self._said = b""
        """The message without its group and its member."""
        self._request: Any = None
        """None until the first request that says this is read."""

    def find(self, rpc: Rpc, message: Any) -> Any:
        """The request that `rpc.read_request` would return, if the last one differs in group and member at most.

        None otherwise.
        """
        copy = _COPYING.get(rpc.request)
        if copy is None:
            return None
        group_id, member_id = message.group_id, message.member_id
        message.ClearField("group_id")
        message.ClearField("member_id")
        said = message.SerializeToString()
        message.group_id, message.member_id = group_id, member_id
        if rpc is not self._rpc or said != self._said:
            self._rpc, self._said, self._request = rpc, said, None
        if self._request is None:
            return None
        try:
            if group_id != self._request.group_id:
                check_group_id(group_id)
            check_member_id(member_id)
        except RejectedRequest:
            return None  # `read_request` raises it, with the name of its field
        return copy(self._request, group_id, member_id)

    def keep(self, rpc: Rpc, request: Any) -> None:
        """`request` was read after `find` has found none."""
        if rpc is self._rpc:
            self._request = request


class _Own(NamedTuple):
    """How the answers to the members of a generation differ."""

    field: str
    """The one that is each member's own, in the reply as in its message; without presence."""
    common: Callable[[Any], tuple[Any, ...]]
    """The values of all other fields."""


def _own(reply: Any, own: str) -> _Own:
    return _Own(own, attrgetter(*(name for name in reply.__struct_fields__ if name != own)))


_OWN: dict[type, _Own] = {JoinReply: _own(JoinReply, "member_id"), SyncReply: _own(SyncReply, "assignment")}


class RepeatedAnswers:
    """The last answer to a join and to a sync: those that differ in the member's own field alone are copied."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[type, tuple[tuple[Any, ...], Any]] = {}
        """By the kind of reply: what the last one said, and the message of that once it has been said twice."""

    def fill(self, rpc: Rpc, message: Any, reply: Reply, revision: int, epoch: int) -> None:
        """As `rpc.fill_answer`, of which a copy takes a third."""
        kind = type(reply)
        own = _OWN.get(kind)
        if own is None or not _may_repeat(reply):
            rpc.fill_answer(message, reply, revision, epoch)
            return
        said = (revision, epoch, *own.common(reply))
        last_said, written = self._last.get(kind, _NOTHING)
        if said == last_said and written is not None:
            message.CopyFrom(written)
            setattr(message, own.field, getattr(reply, own.field))
            return
        rpc.fill_answer(message, reply, revision, epoch)
        if said == last_said:
            written = type(message)()
            written.CopyFrom(message)
            written.ClearField(own.field)
        else:
            written = None
        self._last[kind] = said, written


def _may_repeat(reply: Reply) -> bool:
    """Whether other members may get the same. Not the leader's list of members, which may be large, nor a share."""
    if isinstance(reply, JoinReply):
        return not (reply.pending or reply.members or reply.assignment)
    return isinstance(reply, SyncReply) and not reply.pending


_NOTHING: tuple[tuple[Any, ...], Any] = ((), None)
