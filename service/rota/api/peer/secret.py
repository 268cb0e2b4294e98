"""The secret that replicas send each other: only peers may make these calls, which no client may."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence

import grpc

from rota.observability.refusals import log_refusal

_KEY = "rota-peer-secret"

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]


def shown(secrets: Sequence[str]) -> Metadata:
    """What a call to a peer carries: the first of the secrets."""
    return ((_KEY, secrets[0]),) if secrets else ()


async def demand_secret(secrets: Sequence[str], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    """End a call with UNAUTHENTICATED unless it shows one of these; its message need not have arrived.

    Several are accepted, so that a new one can be brought in. The comparison takes as long whatever is shown.
    """
    given = dict(context.invocation_metadata() or ()).get(_KEY, "")
    shown = given.encode() if isinstance(given, str) else given
    if any(hmac.compare_digest(shown, secret.encode()) for secret in secrets):
        return
    peer = context.peer()
    log_refusal(_log, "a peer was refused: it does not show the secret", peer.rpartition(":")[0], peer=peer)
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "peers of this replica show a secret (--peer-secret-file)")
