"""The unary calls: decode, call the coordinator, encode. No decisions: those are the coordinator's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from rota.core.access.rules import LOCATE
from rota.core.replica.ports import Answer
from rota.protocol import tracing
from rota.protocol.calls import COORDINATOR
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, HeartbeatMany, JoinGroup, Request, parks_for_ms
from rota.protocol.wire.heartbeats import check_size, read_group, write_result
from rota.protocol.wire.protobuf import Twin, parse
from rota.protocol.wire.routes import decode_path
from rota.protocol.wire.rpcs import REMOVE_MEMBERS, RPCS, Rpc
from rota.protocol.wire.shapes import entries_of
from rota.server.access.guard import Admission, Guard
from rota.server.access.identity import ORIGIN
from rota.server.access.inquiry import CAN_I_QUERY, CanIReply, WhoAmIReply, answer_to, known_caller
from rota.server.grpc.failures import abort, checked, outcome_of
from rota.server.grpc.receiving import BYTES_OF_A_TURN, Context, Receiver, dump
from rota.server.heartbeats import GROUPS_OF_A_TURN, answers_to
from rota.server.large import begin_reading, is_large
from rota.server.observability.metrics import Metrics
from rota.server.ports import ServedCoordinator
from rota.v1.access_pb2 import CanIRequest, CanIResponse, WhoAmIRequest, WhoAmIResponse
from rota.v1.coordinator_pb2 import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatManyRequest,
    HeartbeatManyResponse,
)

ACCESS = "rota.v1.Access"
MARGIN_MS = 100
"""What an answer may need on its way back; of a short deadline, a quarter."""

_CALLER = Twin(entries_of(WhoAmIReply), WhoAmIResponse.DESCRIPTOR)
_QUESTION = Twin(CAN_I_QUERY.entries, CanIRequest.DESCRIPTOR)
_DECISION = Twin(entries_of(CanIReply), CanIResponse.DESCRIPTOR)

_OF_OWNER = (
    "shard_id",
    "replica_id",
    "address",
    "lease_left_ms",
    "reported_by",
    "grpc_address",
    "worker_http_port",
    "worker_grpc_port",
    "epoch",
)

Asked = TypeVar("Asked", bound=Request)
Behaviour = Callable[[Context], Awaitable[bytes]]
AskedMany = tuple[list[HeartbeatMany], asyncio.Future[list[Answer]]]
"""Heartbeats that the coordinator was asked about together, and what it answers."""
Note = Callable[[HeartbeatMany, Answer], None]


@dataclass(frozen=True, slots=True)
class Calls:
    """One behaviour for each unary rpc. They take and give bytes: what cannot be parsed is refused, by us.

    The message is received only once its caller is admitted: `receiver` waits until it has arrived in full.
    """

    coordinator: ServedCoordinator
    limits: Limits
    metrics: Metrics
    guard: Guard | None
    admission: Admission
    """Asked before a message is read; the coordinator asks as well, where there is a guard."""
    receiver: Receiver

    def behaviours(self) -> dict[str, Behaviour]:
        """By the rpc's path."""
        works: dict[str, Callable[[Context], Awaitable[Any]]] = {
            rpc.path: partial(self._call, rpc) for rpc in (*RPCS.values(), REMOVE_MEMBERS)
        }
        works |= {
            f"/{COORDINATOR}/HeartbeatMany": self._heartbeat_many,
            f"/{COORDINATOR}/FindCoordinator": self._find_coordinator,
            f"/{ACCESS}/WhoAmI": self._who_am_i,
            f"/{ACCESS}/CanI": self._can_i,
        }
        return {path: partial(self.carry_out, work, path.rpartition("/")[2]) for path, work in works.items()}

    async def carry_out(self, work: Callable[[Context], Awaitable[Any]], operation: str, context: Context) -> Any:
        """Do the work of an rpc, and answer or abort with the result; None for a stream that has ended."""
        if tracing.spans is not None:
            tracing.adopt(tracing.spans, context.invocation_metadata() or ())
        outcome = await outcome_of(work(context), operation)
        self.count(operation, outcome.code if isinstance(outcome, RejectedRequest) else ErrorCode.NONE)
        if isinstance(outcome, RejectedRequest):
            await abort(context, outcome)
        return None if outcome is None else dump(outcome)

    def count(self, operation: str, code: ErrorCode) -> None:
        """Count a call that was answered."""
        if operation == RPCS[Heartbeat].name:
            self.metrics.heartbeat_answered(code)
        else:
            self.metrics.request_answered(operation, code)

    # --- parts that session streams use as well -----------------------------------------------------

    async def read(self, rpc: Rpc, data: bytes, parse_it: Callable[[bytes], Any]) -> Any:
        """The checked request in a message; `RejectedRequest` if the caller may do nothing of this kind there.

        A large message is read on a thread, and is bytes until then: parsed it may be 40 times as large.
        """
        message = parse_it(data)
        names = rpc.names_in(message)
        self.admission.admit_unread(rpc.request, names["namespace"], names.get("group_id") or names.get("topic", ""))
        unsaid: dict[str, Any] = {"by_admin": True} if rpc is REMOVE_MEMBERS else {}
        if rpc.request is JoinGroup:
            unsaid["host"] = ORIGIN.get()
        if not is_large(len(data)):
            return rpc.read_request(message, self.limits, **unsaid)
        del message
        return await begin_reading(lambda: rpc.read_request(parse_it(data), self.limits, **unsaid))

    async def ask(self, rpc: Rpc, request: Request, context: Context) -> Answer:
        """Ask the coordinator in the name of a caller. Raises `RejectedRequest`."""
        answer = self.coordinator.try_heartbeat(request) if isinstance(request, Heartbeat) else None
        if answer is not None:
            return checked(answer)
        request = within_deadline(request, context.time_remaining())
        if not parks_for_ms(request):
            return checked(await self.coordinator.call(request))
        with self.metrics.parked(rpc.name):
            return checked(await self.coordinator.call(request))

    async def ask_many(self, message: HeartbeatManyRequest, known: dict[bytes, HeartbeatMany]) -> list[AskedMany]:
        """Ask about the heartbeats of many groups; `RejectedRequest` if any of them is wrong.

        A group with the same bytes as in `known`, which gets the groups of this message, is not read again.
        """
        check_size(message, self.limits)
        asked, read = list[AskedMany](), dict[bytes, HeartbeatMany]()
        for first in range(0, len(message.groups), GROUPS_OF_A_TURN):
            if first:
                await self.receiver.turns_of_heartbeats.take(BYTES_OF_A_TURN)
            requests = []
            for group in message.groups[first : first + GROUPS_OF_A_TURN]:
                data = group.SerializeToString()
                read[data] = known.get(data) or read_group(group, self.limits)
                requests.append(read[data])
            asked.append((requests, answers_to(self.coordinator, requests)))
        known.clear()
        known.update(read)
        return asked

    async def write_many(self, response: Any, asked: list[AskedMany], note: Note) -> None:
        """Fill the response once all of them are answered. A group that accepts no heartbeats has its own error."""
        for requests, answers in asked:
            for request, answer in zip(requests, await answers, strict=True):
                note(request, answer)
                reply: Any = answer.reply
                write_result(response.groups.add(), reply, answer.revision, answer.epoch)

    def count_heartbeats(self, request: HeartbeatMany, answer: Answer) -> None:
        """Count the answer to the heartbeats of a group: one for each member."""
        reply: Any = answer.reply
        if reply.error is not ErrorCode.NONE:
            self.metrics.heartbeat_answered(reply.error, len(request.members))
            return
        self.metrics.heartbeat_answered(ErrorCode.NONE, len(request.members) - len(reply.errors))
        for error in reply.errors:
            self.metrics.heartbeat_answered(error.error)

    # --- the rpcs -----------------------------------------------------------------------------------

    async def _call(self, rpc: Rpc, context: Context) -> Any:
        self.admission.admit_undecoded(rpc.request)
        data = await self.receiver.message(context)
        request = await self.read(rpc, data, partial(parse, rpc.request_message))
        answer = await self.ask(rpc, request, context)
        return rpc.write_answer(answer.reply, answer.revision, answer.epoch)

    async def _heartbeat_many(self, context: Context) -> HeartbeatManyResponse:
        self.admission.admit_undecoded(HeartbeatMany)
        message = parse(HeartbeatManyRequest, await self.receiver.message(context))
        response = HeartbeatManyResponse()
        await self.write_many(response, await self.ask_many(message, {}), self.count_heartbeats)
        return response

    async def _find_coordinator(self, context: Context) -> FindCoordinatorResponse:
        self.admission.admit_needing(LOCATE)
        message = parse(FindCoordinatorRequest, await self.receiver.message(context))
        names = decode_path({"namespace": message.namespace, "group_id": message.group_id})
        owner = self.coordinator.locate(**names)
        values = {name: getattr(owner, name) for name in _OF_OWNER}
        return FindCoordinatorResponse(revision=owner.last_seq, **values)

    async def _who_am_i(self, context: Context) -> WhoAmIResponse:
        parse(WhoAmIRequest, await self.receiver.message(context))
        response = WhoAmIResponse()
        _CALLER.fill(response, known_caller(self.guard))
        return response

    async def _can_i(self, context: Context) -> CanIResponse:
        message = parse(CanIRequest, await self.receiver.message(context))
        question = CAN_I_QUERY.decode(_QUESTION.document(message, self.limits), self.limits)
        response = CanIResponse()
        _DECISION.fill(response, answer_to(question, self.guard))
        return response


def within_deadline(request: Asked, left_s: float | None) -> Asked:
    """The request with its wait cut to what the deadline leaves, so that it ends as *pending* and not in a timeout."""
    wait_ms, left_ms = parks_for_ms(request), int((left_s or 0) * 1000)
    allowed_ms = max(0, left_ms - min(MARGIN_MS, left_ms // 4))
    if left_s is None or not wait_ms or wait_ms <= allowed_ms:
        return request
    changed: Any = request
    shorter: Asked = replace(changed, wait_ms=allowed_ms)
    return shorter
