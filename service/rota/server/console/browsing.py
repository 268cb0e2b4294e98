"""Restrictions on browsers, and the check that a request was made by the user and not by another site."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request

from rota.protocol.errors import ErrorCode, RejectedRequest

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
