"""The service `Access`: what callers ask about themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from rota.api.access.guard import Guard
from rota.api.access.inquiry import CAN_I_QUERY, CanIReply, WhoAmIReply, answer_to, known_caller
from rota.api.grpc.calls import Behaviour, Calls, Context, dump
from rota.v1.access_pb2 import CanIRequest, CanIResponse, WhoAmIRequest, WhoAmIResponse
from rota.wire.protobuf import Twin, parse
from rota.wire.shapes import Shape

ACCESS = "rota.v1.Access"


_CALLER = Twin(Shape(WhoAmIReply, closed=False), WhoAmIResponse.DESCRIPTOR)
_QUESTION = Twin(CAN_I_QUERY, CanIRequest.DESCRIPTOR)
_DECISION = Twin(Shape(CanIReply, closed=False), CanIResponse.DESCRIPTOR)


@dataclass(frozen=True, slots=True)
class Inquiries:
    """The behaviours of `Access`."""

    calls: Calls
    guard: Guard | None

    def behaviours(self) -> dict[str, Behaviour]:
        """By the rpc's path."""
        works: dict[str, Callable[[Context], Awaitable[bytes]]] = {
            "WhoAmI": self._who_am_i,
            "CanI": self._can_i,
        }
        return {f"/{ACCESS}/{name}": partial(self.calls.carry_out, work, name) for name, work in works.items()}

    async def _who_am_i(self, context: Context) -> bytes:
        parse(WhoAmIRequest, await self.calls.receive(context))
        response = WhoAmIResponse()
        _CALLER.fill(response, known_caller(self.guard))
        return dump(response)

    async def _can_i(self, context: Context) -> bytes:
        message = parse(CanIRequest, await self.calls.receive(context))
        limits = self.calls.limits
        question = CAN_I_QUERY.decode(_QUESTION.document(message, limits), limits)
        response = CanIResponse()
        _DECISION.fill(response, answer_to(question, self.guard))
        return dump(response)
