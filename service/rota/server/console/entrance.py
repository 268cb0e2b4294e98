"""The user of the console: signed in by a token, with a session cookie that scripts cannot read.

Also the restrictions on browsers, and the check that the user made a request, and not another site.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from rota.core.access.rules import SCRAPE
from rota.core.access.sessions import SESSION_MS
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.server.access.guard import Guard
from rota.server.console.backend import ConsoleStore
from rota.server.console.sessions import Sessions, bearer

COOKIE = "rota_session"
COOKIE_OVER_TLS = f"__Host-{COOKIE}"
"""Browsers accept a cookie with this prefix only over TLS, from this host itself, and for all of its paths."""
COOKIE_BELOW_A_PATH = f"__Secure-{COOKIE}"
"""A console below a path sets that path in the cookie, so that other programs of its host do not receive it."""
TOKEN_MAX_CHARS = 8_192


_FORM_MAX_BYTES = 16_384
PAGE_HEADERS = {
    # No inline code, no other sources: a script that is injected into a page does not run.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Entrance:
    """Signs users in. Without a guard every user is accepted, and there is no sign-in."""

    def __init__(self, guard: Guard | None, store: ConsoleStore) -> None:
        self.guard = guard
        self.sessions = None if guard is None else Sessions(store, guard)

    async def enter(self, http: Request) -> None:
        """Authenticate the request as the session's caller; an `Authorization` header has precedence.

        The API never reads the cookie: a form of another site could send it to the API, but not to the console.
        """
        cookie = http.cookies.get(_cookie_name(http), "")
        if self.sessions is not None and cookie and "authorization" not in http.headers:
            await self.sessions.enter(cookie)

    async def open_session(self, response: Response, token: str, http: Request) -> Response:
        """Sign in with a token that `refusal_of` accepted. The browser's former session ends."""
        assert self.sessions is not None
        cookie, secure = await self.sessions.open(token), http.url.scheme == "https"
        await self._close(http)
        max_age, name = SESSION_MS // 1000, _cookie_name(http)
        path = root_of(http) or "/"
        response.set_cookie(name, cookie, max_age=max_age, path=path, secure=secure, httponly=True, samesite="strict")
        return response

    async def close_session(self, response: Response, http: Request) -> Response:
        """Sign out: the cookie is invalid from now on."""
        await self._close(http)
        secure, path = http.url.scheme == "https", root_of(http) or "/"
        response.delete_cookie(_cookie_name(http), path=path, secure=secure, httponly=True, samesite="strict")
        return response

    async def _close(self, http: Request) -> None:
        if self.sessions is not None:
            await self.sessions.close(http.cookies.get(_cookie_name(http), ""))

    async def refusal_of(self, token: str) -> str:
        """Return why this token is rejected; empty if it is accepted.

        Raises:
            RejectedRequest: The caller exceeds its quota, or without a valid token that of its address.
        """
        if self.guard is None:
            return "There is no sign-in: this server lets every caller do everything."
        if not token or len(token) > TOKEN_MAX_CHARS or not token.isascii() or not token.isprintable():
            return "That is no token."
        identity = await self.guard.enter(bearer(token))
        self.guard.charge()
        return identity.proof_refused() or ("That token identifies no caller." if identity.caller.is_anonymous else "")

    @property
    def user(self) -> str:
        """The signed-in subject; empty without one."""
        if self.guard is None:
            return ""
        caller = self.guard.current().caller
        return "" if caller.is_anonymous else caller.subject

    def may_see_server(self) -> bool:
        """Whether the caller may see replicas and shards, as callers that may read the server's metrics do."""
        try:
            self.check_server()
        except RejectedRequest:
            return False
        return True

    def check_server(self) -> None:
        """Check `may_see_server`; raises `RejectedRequest`."""
        if self.guard is not None:
            self.guard.current().check(SCRAPE, "", "")


def place_to_go(http: Request, wanted: str) -> str:
    """Return the page to open after signing in: always one of this console."""
    parts, start = urlsplit(wanted), f"{root_of(http)}/"
    is_ours = wanted.startswith(start) and not wanted.startswith(("//", "/\\")) and not (parts.scheme or parts.netloc)
    return wanted if is_ours and wanted.isprintable() else start


def _cookie_name(http: Request) -> str:
    """Return the cookie's name. With TLS, to this server or to a trusted proxy, it is never sent unencrypted."""
    if http.url.scheme != "https":
        return COOKIE
    return COOKIE_BELOW_A_PATH if root_of(http) else COOKIE_OVER_TLS


def root_of(request: Request) -> str:
    """Return the path prefix under which browsers reach the console, set by a trusted proxy; empty without one."""
    return str(request.scope.get("root_path", ""))


async def fields_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; raise `RejectedRequest` if it is larger than the console's forms."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_MAX_BYTES:
            raise RejectedRequest(ErrorCode.PAYLOAD_TOO_LARGE, f"a form has at most {_FORM_MAX_BYTES} bytes")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "this is no form") from error


def check_origin(request: Request) -> None:
    """Reject a form that another site's page sent with this browser's cookies or from this browser's network.

    Browsers send the origin of a request, and a page cannot change it. A form without one is rejected.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return
        raise RejectedRequest(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"the form was sent from another site ({site})")
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc != request.headers.get("host"):
        raise RejectedRequest(ErrorCode.GROUP_AUTHORIZATION_FAILED, "the form has no proof that this site sent it")
