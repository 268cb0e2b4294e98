"""Finding a group's owner over gRPC: by asking those listed who they are, for replicas advertise where HTTP is."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.owners import Group, Owner, OwnerOutOfReach
from rota.client.transports.rpc import Channels
from rota.v1.coordinator_pb2 import FindCoordinatorRequest, FindCoordinatorResponse
from rota.wire.rpcs import COORDINATOR

_PATH = f"/{COORDINATOR}/FindCoordinator"
_TIMEOUT_S = 2.0


class GrpcOwnerSearch:
    """Who answers says which replica it is, so an owner that is listed is found wherever its address leads through."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._replicas: dict[str, str] = {}
        """By URL, which replica was there last."""

    async def find(self, group: Group, at: str) -> Owner | None:
        """See `rota.client.transports.owners.Find`."""
        try:
            found = await self._ask(group, at)
        except (grpc.aio.AioRpcError, DecodeError, CoordinatorUnreachable) as error:
            raise OwnerOutOfReach(str(error)) from error
        if not found.replica_id or found.lease_left_ms <= 0:
            return None
        for url in self._where_it_was(found.replica_id):
            if url == at or await self._is_there(group, found.replica_id, url):
                return Owner(url, found.epoch)
        others = [url for url in self._channels.urls if url != at]
        are_there = await asyncio.gather(*(self._is_there(group, found.replica_id, url) for url in others))
        for url, is_there in zip(others, are_there, strict=True):
            if is_there:
                return Owner(url, found.epoch)
        raise OwnerOutOfReach(f"none of the addresses is {found.replica_id}'s")

    def _where_it_was(self, replica_id: str) -> list[str]:
        return [url for url, there in self._replicas.items() if there == replica_id]

    async def _is_there(self, group: Group, replica_id: str, url: str) -> bool:
        """Whether that replica answers at a URL, and nobody else."""
        try:
            return bool((await self._ask(group, url)).told_by == replica_id)
        except (grpc.aio.AioRpcError, DecodeError, CoordinatorUnreachable):
            self._replicas.pop(url, None)
            return False

    async def _ask(self, group: Group, url: str) -> Any:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channels.to(url).unary_unary(_PATH)
        request = FindCoordinatorRequest(namespace=group[0], group_id=group[1])
        data = await method(request.SerializeToString(), timeout=_TIMEOUT_S, metadata=self._channels.metadata)
        found = FindCoordinatorResponse.FromString(data)
        if found.told_by:
            self._replicas[url] = found.told_by
        return found
