"""A guard of a sidecar's routes: it rejects pages of other sites, unlisted host names, and missing tokens."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.agents.sidecar.settings import Address, SidecarSettings
from rota.core.access.browsers import REFUSED, Site, site_of
from rota.server.http.origins import OriginCheck, explain

LEAST_TOKEN_BYTES = 16
_BEARER = b"bearer "
_TITLES = {400: "the request is malformed", 401: "credentials are needed", 403: "the request is refused"}

_log = logging.getLogger(__name__)


class Gate:
    """Rejects requests with a problem document; `app` answers all others."""

    def __init__(self, app: ASGIApp, settings: SidecarSettings) -> None:
        self._app = app
        self._token = TokenFile(settings.token_file) if settings.token_file is not None else None
        self._origins = OriginCheck(_site(settings), lambda _reason: None, probes=frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, detail = refusal
        document = {"title": _TITLES[status], "status": status, "detail": detail}
        headers = {"cache-control": "no-store", **({"www-authenticate": "Bearer"} if status == 401 else {})}
        answer = JSONResponse(document, status, headers, media_type="application/problem+json")
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason of a rejection; None if the request is accepted."""
        verdict = self._origins.judge(scope)
        if verdict in REFUSED:
            return explain(verdict)
        if self._token is not None and not self._token.is_shown_by(scope):
            return 401, "the Authorization header must be: Bearer TOKEN, with the token of --http-token-file"
        return None


class TokenFile:
    """The token that programs must send. The file is read for each request, so a new token needs no restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = read_token(path)

    def is_shown_by(self, scope: Scope) -> bool:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) != 1 or shown[0][: len(_BEARER)].lower() != _BEARER:
            return False
        return hmac.compare_digest(shown[0][len(_BEARER) :].strip(), self._current())

    def _current(self) -> bytes:
        """Read the token; while the file is unusable, the former token remains."""
        try:
            self._token = read_token(self._path)
        except ValueError as error:
            _log.warning("the token of the sidecar stays as it was: %s", error)
        return self._token


def read_token(path: Path) -> bytes:
    """Return the token in a file; raise ValueError if it has no usable token."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if len(token) < LEAST_TOKEN_BYTES or not token.isascii() or b" " in token or b"\n" in token:
        raise ValueError(f"{path}: a token is one line of at least {LEAST_TOKEN_BYTES} ASCII characters")
    return token


def _site(settings: SidecarSettings) -> Site:
    """Return the accepted names. No browser can use a Unix socket, so there every name is accepted."""
    if isinstance(settings.http, Path):
        return site_of((), ("*",))
    http: Address = settings.http
    beyond = not http.is_loopback
    return site_of((http.host,), settings.allow_host, beyond_loopback=beyond)
