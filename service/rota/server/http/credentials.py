"""The credentials of an HTTP request."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import Scope

from rota.server.access.identity import NO_CREDENTIALS, NOTE, NOTE_MAX_CHARS, ORIGIN, SEVERAL_CREDENTIALS, Credentials

CERTIFICATE = "rota.certificate"
"""Where in a scope's `extensions` the server puts the caller that the connection's certificate names."""
NOTE_HEADER = b"rota-note"
"""Percent-encoded: why an administrator does this, to be kept with it."""


def credentials_of(scope: Scope) -> Credentials:
    """The `Authorization` header, and the subject of the connection's certificate."""
    client = scope.get("client")
    if client:
        ORIGIN.set(client[0])
    authorization = b""
    for name, value in scope["headers"]:
        if name == b"authorization":
            if authorization:
                return SEVERAL_CREDENTIALS
            authorization = value
        elif name == NOTE_HEADER:
            NOTE.set(unquote(value.decode("ascii", "replace"))[:NOTE_MAX_CHARS])
    certificate = scope.get("extensions", {}).get(CERTIFICATE)
    if not authorization and certificate is None:
        return NO_CREDENTIALS
    return Credentials(authorization, certificate)
