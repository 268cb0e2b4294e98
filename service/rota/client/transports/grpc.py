"""gRPC with one rpc for each call, to any of several addresses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc

from rota.client.errors import CoordinatorUnreachable, error_for
from rota.client.transports.grpc_owners import asking_over_grpc
from rota.client.transports.owner_search import OwnerSearch
from rota.client.transports.owners import Owners
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
        direct: bool = False,
    ) -> None:
        self.channels = Channels(urls, headers, credentials)
        search = OwnerSearch(asking_over_grpc(self.channels), urls, anywhere=direct)
        self.owners = Owners(search.find, is_likely_found=direct or len(urls) > 1)

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """As `Transport.send`."""
        rpc = rpc_of(request)
        try:
            data = rpc.write_request(request).SerializeToString()
        except (TypeError, ValueError) as error:
            # A number too large for its field, or text that is no Unicode: no server could read it either.
            return Received(refuse(request, ErrorCode.INVALID_REQUEST, str(error)))
        addresses = self.channels.in_order(self.owners.address_of(request))
        for url in addresses[:-1]:
            with suppress(_NotSent):
                return await self._ask(request, data, url, timeout_ms)
        try:
            return await self._ask(request, data, addresses[-1], timeout_ms)
        except _NotSent as not_sent:
            return received_of(request, not_sent.error)

    def avoid(self, request: Request, url: str) -> None:
        """The next call like this one goes to another address."""
        self.owners.forget(request, url)
        self.channels.leave(url)

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """As `Transport.watch`."""
        request = WatchGroupRequest(namespace=namespace, group_id=group_id, after_revision=after_revision)
        url = self.channels.url
        path = f"/{ADMIN}/WatchGroup"
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channels.to(url).unary_stream(path)
        stream = method(request.SerializeToString(), metadata=self.channels.metadata)
        try:
            async for data in stream:
                yield _group_event(WatchGroupResponse.FromString(data))
        except grpc.aio.AioRpcError as error:
            self.channels.leave(url)
            problem = problem_in(error)
            if problem is None:
                raise CoordinatorUnreachable(error.details() or error.code().name) from error
            if problem.code not in _ENDS:
                raise error_for(problem.code, problem.detail) from error
        finally:
            stream.cancel()

    async def close(self) -> None:
        await self.owners.close()
        await self.channels.close()

    async def _ask(self, request: Request, data: bytes, url: str, timeout_ms: int) -> Received:
        """At one address; raises `_NotSent` if it cannot be connected to."""
        rpc = rpc_of(request)
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channels.to(url).unary_unary(rpc.path)
        try:
            answer = await method(data, timeout=timeout_ms / 1000, metadata=self.channels.metadata)
        except grpc.aio.AioRpcError as error:
            if problem_in(error) is None:
                self.avoid(request, url)
            if was_not_sent(error):
                raise _NotSent(error) from None
            received = received_of(request, error)
        else:
            received = _read(rpc, answer)
        if received.reply.error in ELSEWHERE:
            self.avoid(request, url)
        # Who does not forward knows whom to go to.
        self.owners.answered(request, received, url)
        return received


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
