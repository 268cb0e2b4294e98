"""gRPC with one rpc for each call, to any of several addresses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc

from rota.client.errors import CoordinatorUnreachable, error_for
from rota.client.transports.port import GroupEvent
from rota.client.transports.rpc import ELSEWHERE, Channels, problem_in, received_of, was_not_sent
from rota.credentials import Credentials
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Request, refuse
from rota.v1.admin_pb2 import WatchGroupRequest, WatchGroupResponse
from rota.wire.replies import MalformedReply, Received
from rota.wire.rpcs import ADMIN, rpc_of

_ENDS = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class GrpcTransport:
    """Speaks to one address until it fails, then to the next; see `HttpTransport`, which this is the twin of."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.channels = Channels(urls, headers, credentials)

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """As `Transport.send`."""
        rpc = rpc_of(request)
        try:
            message = rpc.write_request(request)
        except (TypeError, ValueError) as error:
            # A number too large for its field, or text that is no Unicode: no server could read it either.
            return Received(refuse(request, ErrorCode.INVALID_REQUEST, str(error)))
        try:
            answer = await self._exchange(rpc.path, message.SerializeToString(), timeout_ms / 1000)
        except grpc.aio.AioRpcError as error:
            if problem_in(error) is None:
                self.channels.go_elsewhere()
            received = received_of(request, error)
        else:
            received = _read(rpc, answer)
        if received.reply.error in ELSEWHERE:
            self.channels.go_elsewhere()
        return received

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """As `Transport.watch`."""
        request = WatchGroupRequest(namespace=namespace, group_id=group_id, after_revision=after_revision)
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channels.current().unary_stream(
            f"/{ADMIN}/WatchGroup"
        )
        stream = method(request.SerializeToString(), metadata=self.channels.metadata)
        try:
            async for data in stream:
                yield _group_event(WatchGroupResponse.FromString(data))
        except grpc.aio.AioRpcError as error:
            self.channels.go_elsewhere()
            problem = problem_in(error)
            if problem is None:
                raise CoordinatorUnreachable(error.details() or error.code().name) from error
            if problem.code not in _ENDS:
                raise error_for(problem.code, problem.detail) from error
        finally:
            stream.cancel()

    async def close(self) -> None:
        await self.channels.close()

    async def _exchange(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """One request, at the first address that can be connected to."""
        for _ in self.channels.urls[1:]:
            with suppress(_NotSent):
                return await self._call(path, data, timeout_s)
            self.channels.go_elsewhere()
        try:
            return await self._call(path, data, timeout_s)
        except _NotSent as not_sent:
            raise not_sent.error from None

    async def _call(self, path: str, data: bytes, timeout_s: float) -> bytes:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channels.current().unary_unary(path)
        try:
            return await method(data, timeout=timeout_s, metadata=self.channels.metadata)
        except grpc.aio.AioRpcError as error:
            if was_not_sent(error):
                raise _NotSent(error) from None
            raise


class _NotSent(Exception):
    """No connection could be made."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(error.details())
        self.error = error


def _read(rpc: Any, data: bytes) -> Received:
    try:
        received: Received = rpc.read_answer(rpc.response_message.FromString(data))
    except (MalformedReply, ValueError) as error:
        raise CoordinatorUnreachable(f"the answer is no reply: {error}") from error
    return received


def _group_event(line: WatchGroupResponse) -> GroupEvent:
    return GroupEvent(
        revision=line.revision,
        at_ms=line.at_ms,
        generation_id=line.generation_id,
        kind=line.kind,
        reason=line.reason,
        payload=json.loads(line.payload_json),
    )
