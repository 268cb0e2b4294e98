"""The secret that replicas send each other: only peers may make these calls, which no client may."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence

import grpc

from rota.server.observability.logs import log_refusal

_KEY = "rota-peer-secret"

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]


def shown(secrets: Sequence[str]) -> Metadata:
    """The metadata of a stream to a peer: the first of the secrets."""
    return ((_KEY, secrets[0]),) if secrets else ()


def shows_secret(secrets: Sequence[str], context: grpc.aio.ServicerContext[bytes, bytes]) -> bool:
    """Whether a stream shows one of these; its messages need not have arrived.

    Several are accepted, so that a new one can be brought in. The comparison takes as long whatever is shown.
    """
    given = dict(context.invocation_metadata() or ()).get(_KEY, "")
    presented = given.encode() if isinstance(given, str) else given
    return any(hmac.compare_digest(presented, secret.encode()) for secret in secrets)


def log_stranger(peer: str) -> None:
    """Log that a caller was refused."""
    log_refusal(_log, "a peer was refused: it does not show the secret", peer.rpartition(":")[0], peer=peer)
