"""What an rpc brings to prove who it is from."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc

from rota.access.claims import caller_of_certificate
from rota.api.access.identity import NO_CREDENTIALS, NOTE, NOTE_MAX_CHARS, SEVERAL_CREDENTIALS, Credentials

_NOTE_KEY = "rota-note"


def credentials_of(context: grpc.aio.ServicerContext[Any, Any]) -> Credentials:
    """The `authorization` metadata, and whom the connection's certificate names."""
    authorization = b""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            if authorization:
                return SEVERAL_CREDENTIALS
            authorization = value.encode() if isinstance(value, str) else bytes(value)
        elif key == _NOTE_KEY and isinstance(value, str):
            NOTE.set(unquote(value)[:NOTE_MAX_CHARS])
    facts = context.auth_context()
    names = [name.decode(errors="replace") for name in facts.get("x509_common_name", ())]
    others = [name.decode(errors="replace") for name in facts.get("x509_subject_alternative_name", ())]
    certificate = caller_of_certificate(others, next(iter(names), "")) if names or others else None
    if not authorization and certificate is None:
        return NO_CREDENTIALS
    return Credentials(authorization, certificate)
