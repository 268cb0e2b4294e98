"""The credentials of an rpc."""

from __future__ import annotations

from functools import lru_cache
from ssl import PEM_cert_to_DER_cert
from typing import Any
from urllib.parse import unquote

import grpc

from rota.access.certificates import caller_of_certificate, read_certificate
from rota.access.rules import Caller
from rota.api.access.identity import NO_CREDENTIALS, NOTE, NOTE_MAX_CHARS, SEVERAL_CREDENTIALS, Credentials

_NOTE_KEY = "rota-note"


def credentials_of(context: grpc.aio.ServicerContext[Any, Any]) -> Credentials:
    """The `authorization` metadata, and the subject of the connection's certificate."""
    authorization = b""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            if authorization:
                return SEVERAL_CREDENTIALS
            authorization = value.encode() if isinstance(value, str) else bytes(value)
        elif key == _NOTE_KEY and isinstance(value, str):
            NOTE.set(unquote(value)[:NOTE_MAX_CHARS])
    shown = tuple(context.auth_context().get("x509_pem_cert", ()))
    certificate = _caller_of(shown[0]) if len(shown) == 1 else None
    if not authorization and certificate is None:
        return NO_CREDENTIALS
    return Credentials(authorization, certificate)


@lru_cache(maxsize=1_000)
def _caller_of(pem: bytes) -> Caller | None:
    """The caller that a certificate names. gRPC's own list of its names does not say of which kind each one is."""
    try:
        return caller_of_certificate(read_certificate(PEM_cert_to_DER_cert(pem.decode("ascii"))))
    except ValueError:
        return None
