"""Asking a peer, and waiting for the outcome."""

from __future__ import annotations

import asyncio

from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import Answer, Replica
from rota.protocol.messages import Request
from rota.server.peer.client import GrpcPeers

STATUS_LOST = "Internal error from Core"
"""What gRPC's client says if the server ended the stream while a message was written: the server's status is lost."""


async def asked(peers: GrpcPeers, peer: Replica, request: Request) -> Answer | NoAnswer:
    """The outcome of a request, which is cancelled with this task. Asks again if the peer's status was lost."""
    while (outcome := await _asked_once(peers, peer, request)) == NoAnswer(STATUS_LOST):
        pass
    return outcome


async def _asked_once(peers: GrpcPeers, peer: Replica, request: Request) -> Answer | NoAnswer:
    outcome: asyncio.Future[Answer | NoAnswer] = asyncio.get_running_loop().create_future()
    cancel = peers.submit(peer, request, outcome.set_result)
    try:
        return await outcome
    finally:
        cancel()


async def answered(peers: GrpcPeers, peer: Replica, request: Request) -> Answer:
    """The answer to a request."""
    outcome = await asked(peers, peer, request)
    assert isinstance(outcome, Answer), outcome
    return outcome
