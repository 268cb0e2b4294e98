"""Signing on the server: a member gets the token right after the check that its fence holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from rota.fencing.keys import KeyRing
from rota.fencing.tokens import FencingToken, sign
from rota.protocol.messages import FenceReply, VerifyFence


@dataclass(frozen=True, slots=True)
class Signer:
    """Adds a token to a positive answer. It expires after `ttl_s`; its holder requests the next before that."""

    keys: Callable[[], KeyRing]
    """Returns the current keys."""
    ttl_s: int
    clock: Callable[[], float] = time.time

    def jwks(self) -> dict[str, Any]:
        """Return the public keys, for verifiers of tokens."""
        return self.keys().jwks()

    def __call__(self, request: VerifyFence, reply: FenceReply) -> FenceReply:
        now = int(self.clock())
        token = FencingToken(
            request.namespace,
            request.group_id,
            reply.generation_id,
            request.member_id,
            reply.is_leader,
            now,
            now + self.ttl_s,
            reply.fencing_token,
            reply.group_instance_id,
        )
        return replace(reply, token=sign(token, self.keys()))
