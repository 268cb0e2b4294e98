"""Requests in one message of a stream that say the same of one member after another: they are read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_group_id, check_member_id
from rota.protocol.messages import JoinGroup, SyncGroup
from rota.wire.rpcs import Rpc


def _copying(request: type) -> Callable[[Any, str, str], Any]:
    """A request like the given one, of another member and group. `dataclasses.replace` takes three times as long."""
    names = [field.name for field in fields(request)]
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
