"""Lookup of a group's owner over gRPC."""

from __future__ import annotations

import grpc

from rota.client.transports.owner_search import Ask, OwnerReport
from rota.client.transports.owners import Group, OwnerOutOfReach
from rota.client.transports.rpc import Channels
from rota.protocol.calls import COORDINATOR
from rota.protocol.defaults import CONNECT_TIMEOUT_MS
from rota.v1.coordinator_pb2 import FindCoordinatorRequest, FindCoordinatorResponse

_TIMEOUT_S = CONNECT_TIMEOUT_MS / 1000
_PATH = f"/{COORDINATOR}/FindCoordinator"


def asking_over_grpc(channels: Channels) -> Ask:
    """Return the lookup over gRPC: see `rota.client.transports.owner_search.Ask`."""

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
