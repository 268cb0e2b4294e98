"""The secret that replicas send each other: only peers may make these calls, which no client may."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Sequence

import grpc

from rota.observability.refusals import log_refusal

_KEY = "rota-peer-secret"

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]


def shown(secrets: Sequence[str]) -> Metadata:
    """What a call to a peer carries: the first of the secrets."""
    return ((_KEY, secrets[0]),) if secrets else ()


class SecretRequired:
    """Refuses calls that show none of the secrets. Several are accepted, so that a new one can be brought in."""

    def __init__(self, secrets: Callable[[], Sequence[str]]) -> None:
        self._secrets = secrets

    async def demand(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """End the call with UNAUTHENTICATED unless it shows one. Its message need not have arrived."""
        if self._knows(dict(context.invocation_metadata() or ()).get(_KEY, "")):
            return
        peer = context.peer()
        source = peer.rpartition(":")[0]
        log_refusal(_log, "a peer was refused: it does not show the secret", source, peer=peer)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "peers of this replica show a secret (--peer-secret-file)")

    def _knows(self, given: str | bytes) -> bool:
        """In a time that tells nothing about how much of it is right."""
        shown = given.encode() if isinstance(given, str) else given
        return any(hmac.compare_digest(shown, secret.encode()) for secret in self._secrets())
