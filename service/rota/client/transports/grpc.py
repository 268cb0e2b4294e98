"""gRPC with one rpc for each call, to any of several addresses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rota.client.errors import CoordinatorUnreachable, error_in
from rota.client.transports.causes import foreign, quoted
from rota.client.transports.owners import Addresses, Ask, Group, OwnerOutOfReach, OwnerReport
from rota.client.transports.port import GroupEvent
from rota.client.transports.rpc import Channels, problem_in, refusal
from rota.credentials import Credentials
from rota.protocol.calls import ADMIN, COORDINATOR, refuse
from rota.protocol.defaults import CONNECT_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Request
from rota.protocol.wire.replies import MalformedReply, Received
from rota.protocol.wire.rpcs import rpc_of
from rota.v1.admin_pb2 import WatchGroupRequest, WatchGroupResponse
from rota.v1.coordinator_pb2 import FindCoordinatorRequest, FindCoordinatorResponse

_WATCH = f"/{ADMIN}/WatchGroup"
_ENDS = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class GrpcTransport:
    """Calls one address until it fails, then the next; the counterpart of `HttpTransport`."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        direct: bool = False,
    ) -> None:
        self.channels = Channels(headers, credentials)
        self.addresses = Addresses(urls, asking_over_grpc(self.channels), direct=direct)

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """Send a request: see `Transport.send`."""
        rpc = rpc_of(request)
        try:
            data = rpc.write_request(request).SerializeToString()
        except (TypeError, ValueError) as error:
            # A number is too large for its field, or text is no Unicode: no server could read it.
            return Received(refuse(request, ErrorCode.INVALID_REQUEST, str(error)))
        owner = self.addresses.owners.address_of(request)
        return await self.addresses.first_reached(lambda url: self._ask(request, data, url, timeout_ms), owner)

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """Watch a group: see `Transport.watch`."""
        request = WatchGroupRequest(namespace=namespace, group_id=group_id, after_revision=after_revision)
        url = self.addresses.url
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channels.to(url).unary_stream(_WATCH)
        stream = method(request.SerializeToString(), metadata=self.channels.metadata)
        try:
            async for data in stream:
                yield _group_event(WatchGroupResponse.FromString(data))
        except (Exception, asyncio.CancelledError) as error:
            self.addresses.leave(url)
            problem = problem_in(error)
            if problem is None:
                raise self.channels.failure(error, url) from error
            if problem.code not in _ENDS:
                raise error_in(problem) from error
        finally:
            stream.cancel()

    async def close(self) -> None:
        await self.addresses.owners.close()
        await self.channels.close()

    async def _ask(self, request: Request, data: bytes, url: str, timeout_ms: int) -> Received:
        """Call one address; raise `CoordinatorUnreachable` for everything but an answer of Rota's."""
        try:
            received = await self._exchange(request, data, url, timeout_ms)
        except CoordinatorUnreachable:
            self.addresses.avoid(request, url)
            raise
        self.addresses.answered(request, received, url)
        return received

    async def _exchange(self, request: Request, data: bytes, url: str, timeout_ms: int) -> Received:
        rpc = rpc_of(request)
        try:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channels.to(url).unary_unary(rpc.path)
            answer = await method(data, timeout=timeout_ms / 1000, metadata=self.channels.metadata)
            return _read(rpc, answer, url)
        except (Exception, asyncio.CancelledError) as error:
            problem = problem_in(error)
            if problem is None:
                raise self.channels.failure(error, url, timeout_ms) from error
            return refusal(request, problem)


def _read(rpc: Any, data: bytes, url: str) -> Received:
    try:
        received: Received = rpc.read_answer(rpc.response_message.FromString(data))
    except (MalformedReply, ValueError, DecodeError) as error:
        raise foreign(f"the answer from {url} is no reply of Rota's ({quoted(error)})") from error
    return received


def _group_event(line: WatchGroupResponse) -> GroupEvent:
    return GroupEvent(
        revision=line.revision,
        at=line.at_ms / 1000,
        generation_id=line.generation_id,
        kind=line.kind,
        reason=line.reason,
        payload=json.loads(line.payload_json),
    )


_TIMEOUT_S = CONNECT_TIMEOUT_MS / 1000
_PATH = f"/{COORDINATOR}/FindCoordinator"


def asking_over_grpc(channels: Channels) -> Ask:
    """Return the lookup over gRPC: see `rota.client.transports.owners.Ask`."""

    async def ask(group: Group, at: str) -> OwnerReport:
        request = FindCoordinatorRequest(namespace=group[0], group_id=group[1])
        try:
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channels.to(at).unary_unary(_PATH)
            data = await method(request.SerializeToString(), timeout=_TIMEOUT_S, metadata=channels.metadata)
            found = FindCoordinatorResponse.FromString(data)
        except Exception as error:
            # This call is optional: after any failure, requests are sent to the listed addresses.
            raise OwnerOutOfReach(str(error)) from error
        replica_id = found.replica_id if found.lease_left_ms > 0 else ""
        return OwnerReport(replica_id, found.reported_by, found.epoch, found.grpc_address, found.worker_grpc_port)

    return ask
