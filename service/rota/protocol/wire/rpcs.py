"""Which request is which rpc, and how both look in protobuf: the server serves this table, the SDK calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from rota.protocol import messages as m
from rota.protocol.calls import ADMIN, CALLS, COORDINATOR, Call
from rota.protocol.limits import Limits
from rota.protocol.messages import Reply, Request
from rota.protocol.wire.protobuf import Twin
from rota.protocol.wire.replies import OUTCOMES, SHAPES, Received, decode_reply
from rota.protocol.wire.routes import REQUESTS, decode_path
from rota.v1 import admin_pb2, coordinator_pb2


class Rpc:
    """One unary call. Requests are checked by the shape that checks them over HTTP."""

    def __init__(self, call: Call, name: str, request_message: Any, response_message: Any):
        self.service = call.service
        self.name = name
        self.request = call.request
        self.request_message: type[Message] = request_message
        self.response_message: type[Message] = response_message
        self._path = call.path_names
        self._shape = REQUESTS[call.request]
        # In a query string, which most calls without a body have over HTTP, an empty list is none.
        empty = () if call.has_body else None
        self._request_twin = Twin(self._shape.entries, request_message.DESCRIPTOR, empty=empty)
        self.reply = call.reply
        self._reply_twin = Twin(SHAPES[call.reply].entries, response_message.DESCRIPTOR)

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"

    def names_in(self, message: Any) -> dict[str, str]:
        """What over HTTP is in the path: the namespace, and the group or the topic; checked."""
        return decode_path({name: getattr(message, name) for name in self._path})

    def read_request(self, message: Any, limits: Limits, **given: Any) -> Any:
        """The checked request, with what the message does not say; `RejectedRequest` as over HTTP."""
        document = self._request_twin.document(message, limits)
        return self._shape.decode(document, limits, **self.names_in(message), **given)

    def write_request(self, request: Request) -> Any:
        """The message of a request; ValueError or TypeError if protobuf cannot hold it."""
        message: Any = self.request_message()
        for name in self._path:
            setattr(message, name, getattr(request, name))
        self._request_twin.fill(message, request)
        return message

    def write_answer(self, reply: Reply, revision: int, epoch: int) -> Any:
        """The message of a reply without an error."""
        message: Any = self.response_message()
        self.fill_answer(message, reply, revision, epoch)
        return message

    def fill_answer(self, message: Any, reply: Reply, revision: int, epoch: int) -> None:
        """Write the same into a message that is empty, also where it is part of another one."""
        message.SetInParent()
        message.revision = revision
        message.epoch = epoch
        match reply:
            case m.JoinReply(pending=True):
                message.pending = True
                message.member_id = reply.member_id
            case m.SyncReply(pending=True):
                message.pending = True
            case _:
                self._reply_twin.fill(message, reply)

    def read_answer(self, message: Any) -> Received:
        """The reverse, for the SDK; `MalformedReply` if it is no such reply."""
        document = self._reply_twin.document(message, _NO_LIMITS)
        document |= {"revision": message.revision, "epoch": message.epoch}
        if self.reply in OUTCOMES:
            document["outcome"] = "pending" if message.pending else OUTCOMES[self.reply]
        return decode_reply(self.reply, document)


_NO_LIMITS = Limits()
_MODULES = {COORDINATOR: coordinator_pb2, ADMIN: admin_pb2}


def _rpc(call: Call, name: str = "") -> Rpc:
    name, module = name or call.request.__name__, _MODULES[call.service]
    return Rpc(call, name, getattr(module, f"{name}Request"), getattr(module, f"{name}Response"))


REMOVE_MEMBERS = _rpc(replace(CALLS[m.LeaveGroup], service=ADMIN), "RemoveMembers")
"""The same request as `LeaveGroup`, but `by_admin`."""

RPCS: Mapping[type[Request], Rpc] = MappingProxyType(
    {call.request: _rpc(call) for call in CALLS.values() if call.service}
)


def rpc_of(request: Request) -> Rpc:
    """The rpc that carries a request."""
    if isinstance(request, m.LeaveGroup) and request.by_admin:
        return REMOVE_MEMBERS
    return RPCS[type(request)]
