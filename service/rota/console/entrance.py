"""Who looks at the console: signed in by a token, which the browser keeps in a cookie that no script can read."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from rota.access.actions import KEEP_TOKENS, SCRAPE
from rota.api.access.guard import Guard
from rota.api.access.identity import NOTE, Credentials
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import Act

COOKIE = "rota_console"
TOKEN_MAX_CHARS = 8_192
_SECONDS = 12 * 3_600
"""For how long a browser stays signed in; the token may end before that."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """Without a guard everybody is let in, and there is nothing to sign in to."""

    guard: Guard | None

    async def enter(self, http: Request) -> None:
        """From here on the request is that of whoever the cookie proves; a header, which the API looks at, goes first.

        The cookie counts for pages only: a form of another site could bring it along to the API, but not here.
        """
        token = http.cookies.get(COOKIE, "")
        if self.guard is not None and token and "authorization" not in http.headers:
            await self.guard.enter(_bearer(token))

    async def refusal_of(self, token: str) -> str:
        """Why this token lets nobody in; empty if it does."""
        if self.guard is None:
            return "There is nothing to sign in to: this server lets everybody do everything."
        if not token or len(token) > TOKEN_MAX_CHARS or not token.isascii() or not token.isprintable():
            return "That is no token."
        identity = await self.guard.enter(_bearer(token))
        return identity.proof_refused() or ("That token names nobody." if identity.caller.is_anonymous else "")

    @property
    def who(self) -> str:
        """The subject that is signed in; empty where nobody is."""
        if self.guard is None:
            return ""
        caller = self.guard.current().caller
        return "" if caller.is_anonymous else caller.subject

    def act(self) -> Act:
        """Whose act this is, with the note that was given; only where somebody is asked who they are."""
        assert self.guard is not None
        return self.guard.act()

    def may_see_server(self) -> bool:
        """Replicas and shards are shown to who may look at the server, as its metrics are."""
        try:
            self.check_server()
        except RejectedRequest:
            return False
        return True

    def check_server(self) -> None:
        """Raises `RejectedRequest`."""
        if self.guard is not None:
            self.guard.admit_to_server(SCRAPE)

    def check_tokens(self) -> None:
        """Raises `RejectedRequest`, also where tokens count for nothing: then anybody could revoke them."""
        if self.guard is None:
            detail = "this server asks nobody who they are, so it shows no tokens"
            raise RejectedRequest(ErrorCode.GROUP_AUTHORIZATION_FAILED, detail)
        self.guard.admit_to_server(KEEP_TOKENS)


def keep_token(response: Response, token: str, http: Request) -> Response:
    """Never sent in the clear where the browser came by TLS, to us or to a proxy whose word counts."""
    secure = http.url.scheme == "https"
    response.set_cookie(COOKIE, token, max_age=_SECONDS, path="/", secure=secure, httponly=True, samesite="strict")
    return response


def forget_token(response: Response) -> Response:
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def place_to_go(wanted: str) -> str:
    """Where to go after signing in: a page of ours, and never one of somebody else."""
    parts = urlsplit(wanted)
    is_ours = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and not (parts.scheme or parts.netloc)
    return wanted if is_ours and wanted.isprintable() else "/"


def note(text: str) -> None:
    """Keep this with whatever the guard writes down of the call that follows."""
    NOTE.set(text)


def _bearer(token: str) -> Credentials:
    return Credentials(b"Bearer " + token.encode("ascii", "replace"))
