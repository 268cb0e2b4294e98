"""The unary calls: decode, call the coordinator, encode. No decisions: those are the coordinator's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
from msgspec.structs import replace

from rota.access.rules import LOCATE
from rota.access.sources import FORWARDED_FOR, Proxies
from rota.api.access.guard import Admission
from rota.api.grpc.failures import Failure, abort, checked, outcome_of
from rota.api.heartbeats import GROUPS_OF_A_TURN, complete, tried
from rota.api.large import begin_reading, is_large
from rota.api.ports import ServedCoordinator
from rota.observability import tracing
from rota.observability.metrics import Metrics
from rota.protocol.calls import COORDINATOR
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    JoinGroup,
    Request,
    parks_for_ms,
)
from rota.replica.ports import Answer
from rota.v1.coordinator_pb2 import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatManyRequest,
    HeartbeatManyResponse,
)
from rota.wire.heartbeats import (
    check_size,
    dump_heartbeat_reply,
    parse_heartbeat,
    read_many,
    refuse_all,
    write_result,
)
from rota.wire.protobuf import parse
from rota.wire.repeated import RepeatedAnswers
from rota.wire.routes import decode_path
from rota.wire.rpcs import REMOVE_MEMBERS, RPCS, Rpc

Context = grpc.aio.ServicerContext[bytes, bytes]
MARGIN_MS = 100
"""What an answer may need on its way back; of a short deadline, a quarter."""
MOST_REFUSED = 1_000
"""Groups of one message that are refused one by one."""

Asked = TypeVar("Asked", bound=Request)
Behaviour = Callable[[Context], Awaitable[bytes]]
Receive = Callable[[Context], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Calls:
    """One behaviour for each unary rpc. They take and give bytes: what cannot be parsed is refused, by us.

    The message is received only once its caller is admitted: `receive` waits until it has arrived in full.
    """

    coordinator: ServedCoordinator
    limits: Limits
    metrics: Metrics
    admission: Admission
    """Asked before a message is read; the coordinator asks as well, where there is a guard."""
    proxies: Proxies
    receive: Receive
    answers: RepeatedAnswers = field(default_factory=RepeatedAnswers)
    """Those of all session streams."""

    def behaviours(self) -> dict[str, Behaviour]:
        """By the rpc's path."""
        by_path: dict[str, Behaviour] = {
            rpc.path: partial(self.carry_out, partial(self._call, rpc), rpc.name)
            for rpc in (*RPCS.values(), REMOVE_MEMBERS)
        }
        by_hand = {"HeartbeatMany": self._heartbeat_many, "FindCoordinator": self._find_coordinator}
        for name, work in by_hand.items():
            by_path[f"/{COORDINATOR}/{name}"] = partial(self.carry_out, work, name)
        by_path[RPCS[Heartbeat].path] = self._heartbeat
        return by_path

    async def ask(self, rpc: Rpc, request: Request, context: Context) -> Answer:
        """Ask the coordinator in the name of a caller. Raises `CallFailed`."""
        request = within_deadline(request, context.time_remaining())
        if not parks_for_ms(request):
            return checked(await self.coordinator.call(request))
        with self.metrics.parked(rpc.name):
            return checked(await self.coordinator.call(request))

    def admit_unread(self, rpc: Rpc, message: Any) -> None:
        """Raise `RejectedRequest` where the caller may do nothing of this kind there: its message is not read then."""
        names = rpc.names_in(message)
        self.admission.admit_unread(rpc.request, names["namespace"], names.get("group_id") or names.get("topic", ""))

    def refuse_heartbeats(self, message: Any, response: Any) -> bool:
        """Fill the response where the caller may heartbeat nowhere: then the message is not read. Whether it was.

        Raises `RejectedRequest` where that would take long: to fill in 10,000 groups holds up the event loop for 0.1 s.
        """
        try:
            self.admission.admit_undecoded(HeartbeatMany)
        except RejectedRequest as rejected:
            if len(message.groups) > MOST_REFUSED:
                raise
            check_size(message, self.limits)
            refuse_all(response.groups, len(message.groups), rejected)
            self.metrics.heartbeat_answered(rejected.code, sum(len(group.members) for group in message.groups))
            return True
        return False

    def count(self, request: HeartbeatMany, answer: Answer) -> None:
        """One for each member."""
        reply = answer.reply
        assert isinstance(reply, HeartbeatManyReply)
        if reply.error is not ErrorCode.NONE:
            self.metrics.heartbeat_answered(reply.error, len(request.members))
            return
        self.metrics.heartbeat_answered(ErrorCode.NONE, len(request.members) - len(reply.errors))
        for error in reply.errors:
            self.metrics.heartbeat_answered(error.error)

    async def carry_out(self, work: Callable[[Context], Awaitable[bytes]], operation: str, context: Context) -> bytes:
        """Do the work of an rpc, and answer or abort with what came of it."""
        if tracing.spans is not None:
            tracing.adopt(tracing.spans, context.invocation_metadata() or ())
        outcome = await outcome_of(work(context), operation)
        if isinstance(outcome, Failure):
            self.metrics.request_answered(operation, outcome.code)
            await abort(context, outcome)
        self.metrics.request_answered(operation, ErrorCode.NONE)
        return outcome

    # --- the rpcs ----------------------------------------------------------------------------------

    async def _call(self, rpc: Rpc, context: Context) -> bytes:
        self.admission.admit_undecoded(rpc.request)
        data = await self.receive(context)
        message, unsaid = parse(rpc.request_message, data), self._unsaid(rpc, context)
        self.admit_unread(rpc, message)
        if is_large(len(data)):
            del message  # It may be 40 times as large as its bytes, and others are read before it.
            request = await begin_reading(lambda: rpc.parse_request(data, self.limits, **unsaid))
        else:
            request = rpc.read_request(message, self.limits, **unsaid)
        answer = await self.ask(rpc, request, context)
        return dump(rpc.write_answer(answer.reply, answer.revision, answer.epoch))

    def _unsaid(self, rpc: Rpc, context: Context) -> dict[str, Any]:
        """What a request holds and its message does not."""
        if rpc is REMOVE_MEMBERS:
            return {"by_admin": True}
        return {"host": client_of(context, self.proxies)} if rpc.request is JoinGroup else {}

    async def _heartbeat(self, context: Context) -> bytes:
        if tracing.spans is not None:
            tracing.adopt(tracing.spans, context.invocation_metadata() or ())
        outcome = await outcome_of(self._receive_heartbeat(context), "Heartbeat")
        if isinstance(outcome, Failure):
            self.metrics.heartbeat_answered(outcome.code)
            await abort(context, outcome)
        self.metrics.heartbeat_answered(ErrorCode.NONE)
        return outcome

    async def _receive_heartbeat(self, context: Context) -> bytes:
        self.admission.admit_undecoded(Heartbeat)
        request = parse_heartbeat(await self.receive(context), self.limits)
        answer = self.coordinator.try_heartbeat(request)
        if answer is None:
            answer = await self.ask(RPCS[Heartbeat], request, context)
        reply = checked(answer).reply
        assert isinstance(reply, HeartbeatReply)
        return dump_heartbeat_reply(reply, answer.revision, answer.epoch)

    async def _heartbeat_many(self, context: Context) -> bytes:
        """A group that cannot accept heartbeats has the error in its own result; only the request itself can fail."""
        response = HeartbeatManyResponse()
        data = await self.receive(context)
        message = parse(HeartbeatManyRequest, data)
        if self.refuse_heartbeats(message, response):
            return dump(response)
        if is_large(len(data)) or len(message.groups) > GROUPS_OF_A_TURN:
            del message
            requests = await begin_reading(lambda: read_many(parse(HeartbeatManyRequest, data), self.limits))
        else:
            requests = read_many(message, self.limits)
        answers, missing = await tried(self.coordinator, requests, self.count, partial(asyncio.sleep, 0))
        for answer in await complete(self.coordinator, answers, missing, self.count):
            assert isinstance(answer.reply, HeartbeatManyReply)
            write_result(response.groups.add(), answer.reply, answer.revision, answer.epoch)
        return dump(response)

    async def _find_coordinator(self, context: Context) -> bytes:
        self.admission.admit_needing(LOCATE)
        message = parse(FindCoordinatorRequest, await self.receive(context))
        owner = self.coordinator.locate(**decode_path({"namespace": message.namespace, "group_id": message.group_id}))
        return dump(
            FindCoordinatorResponse(
                shard_id=owner.shard_id,
                replica_id=owner.replica_id,
                address=owner.address,
                lease_left_ms=owner.lease_left_ms,
                reported_by=owner.reported_by,
                grpc_address=owner.grpc_address,
                worker_http_port=owner.worker_http_port,
                worker_grpc_port=owner.worker_grpc_port,
                revision=owner.last_seq,
                epoch=owner.epoch,
            )
        )


def dump(message: Any) -> bytes:
    dumped: bytes = message.SerializeToString()
    return dumped


def client_of(context: Context, proxies: Proxies) -> str:
    """The address that a call comes from: the peer's, or that which a proxy that is trusted has forwarded it for."""
    host = host_of(context.peer())
    if not proxies.trust(host):
        return host
    metadata = context.invocation_metadata() or ()
    return proxies.client_of(host, [str(value) for key, value in metadata if key == FORWARDED_FOR])


def host_of(peer: str) -> str:
    """The address in gRPC's name for a peer: `ipv4:10.0.0.7:1234`, `ipv6:%5B::1%5D:1234`, `unix:`."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""


def within_deadline(request: Asked, left_s: float | None) -> Asked:
    """Whichever is over first, the wait or the deadline, the client gets an answer.

    Cut the request's wait to what the deadline leaves, so that it ends as *pending* and not in a timeout.
    """
    wait_ms = parks_for_ms(request)
    if left_s is None or not wait_ms:
        return request
    left_ms = int(left_s * 1000)
    allowed_ms = max(0, left_ms - min(MARGIN_MS, left_ms // 4))
    if wait_ms <= allowed_ms:
        return request
    changed: Any = request
    shorter: Asked = replace(changed, wait_ms=allowed_ms)
    return shorter
