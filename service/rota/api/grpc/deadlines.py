"""The client's deadline and the protocol's wait: whichever is over first, the client gets an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rota.protocol.messages import Request
from rota.wire.routes import wait_ms_of

MARGIN_MS = 100
"""What an answer may need on its way back; of a short deadline, a quarter."""


def within_deadline(request: Request, left_s: float | None) -> Request:
    """Cut the request's wait to what the deadline leaves, so that it ends as *pending* and not in a timeout."""
    wait_ms = wait_ms_of(request)
    if left_s is None or not wait_ms:
        return request
    left_ms = int(left_s * 1000)
    allowed_ms = max(0, left_ms - min(MARGIN_MS, left_ms // 4))
    if wait_ms <= allowed_ms:
        return request
    changed: Any = request
    shorter: Request = replace(changed, wait_ms=allowed_ms)
    return shorter
