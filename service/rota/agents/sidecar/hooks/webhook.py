"""Notification of a URL. Requests are signed, and numbered so that the receiver can reject old ones."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable

import httpx

from rota.agents.sidecar.changes import Change
from rota.agents.sidecar.hooks.dispatch import HookFailed
from rota.protocol.fencing_token import generation_of

SIGNATURE_HEADER = "Rota-Signature"
GENERATION_HEADER = "Rota-Generation"
TOKEN_HEADER = "Rota-Fencing-Token"
EVENT_ID_HEADER = "Rota-Event-Id"
_RETRIED = frozenset({408, 425, 429})


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """`t=<seconds since 1970>,v1=<HMAC-SHA256 in hex of "<seconds>.<body>">`: the time is signed against replays."""
    digest = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class Webhook:
    """POSTs each change. A 2xx is success; a 4xx is not retried, except 408, 425 and 429."""

    name = "webhook"

    def __init__(
        self, http: httpx.AsyncClient, url: str, secret: bytes | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._http = http
        self._url = url
        self._secret = secret
        self._clock = clock

    async def deliver(self, change: Change) -> None:
        body = json.dumps(change.document(), separators=(",", ":")).encode()
        headers = {
            "Content-Type": "application/json",
            EVENT_ID_HEADER: change.event_id,
            GENERATION_HEADER: str(generation_of(change.status.token)),
            TOKEN_HEADER: str(change.status.token),
        }
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._secret, int(self._clock()), body)
        try:
            # The body of the answer is not read, because its size is unbounded.
            async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
                pass
        except httpx.TransportError as error:
            raise HookFailed(f"{type(error).__name__}: {error}") from error
        if not response.is_success:
            again = response.status_code >= 500 or response.status_code in _RETRIED
            raise HookFailed(f"answered {response.status_code}", again=again)
