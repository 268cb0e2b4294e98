"""The attempts of callers on the network at the samples: each a request as bytes, with the status that refuses it."""

from __future__ import annotations

import asyncio
import ssl

GROUP = "/v1/namespaces/default/groups/attacked"
FORGED_GROUP = "/v1/namespaces/default/groups/forged"
JOIN = b'{"protocol_type": "leader", "protocols": [{"name": "single"}], "group_instance_id": "i", "client_id": "c"}'
FOREIGN = "203.0.113.9"


def a_request(body: bytes, *headers: str, trailers: str = "", path: str = f"{GROUP}/join") -> bytes:
    """Chunked, so that it may have trailers, and closed after its answer."""
    fields = ("Host: localhost", "Connection: close", "Content-Type: application/json", *headers)
    head = "\r\n".join([f"POST {path} HTTP/1.1", *fields, "Transfer-Encoding: chunked", "", ""])
    return head.encode() + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers.encode())


def attempts(token: str) -> dict[str, tuple[bytes, int]]:
    """Of a caller that has the token, or has none where only a trailer or another's page shows it."""
    shown = f"Authorization: Bearer {token}"
    return {
        "no credentials": (a_request(JOIN), 401),
        "another spelling of the path": (a_request(JOIN, path=GROUP.replace("groups", "%67roups") + "/join"), 401),
        "a token in a trailer": (a_request(JOIN, trailers=f"{shown}\r\n"), 401),
        "two tokens": (a_request(JOIN, shown, "Authorization: Bearer x"), 401),
        "another site's page": (a_request(JOIN, shown, "Sec-Fetch-Site: cross-site"), 403),
        "another site's page by its origin": (a_request(JOIN, shown, "Origin: https://evil.example"), 403),
        "a form": (a_request(JOIN, shown).replace(b"application/json", b"text/plain"), 415),
        "two lengths": (a_request(JOIN, shown, f"Content-Length: {len(JOIN)}"), 400),
        "many trailers": (a_request(JOIN, shown, trailers="x: y\r\n" * 300), 431),
    }


def a_forged_join(token: str) -> bytes:
    """A join with headers and trailers that say that it comes from elsewhere."""
    forged = [f"{name}: {FOREIGN}" for name in ("X-Forwarded-For", "X-Real-IP", "True-Client-IP", "X-Client-IP")]
    trailers = "".join(f"{each}\r\n" for each in forged)
    return a_request(JOIN, f"Authorization: Bearer {token}", *forged, trailers=trailers, path=f"{FORGED_GROUP}/join")


def a_look(token: str) -> bytes:
    """At the group of that join."""
    head = (f"GET {FORGED_GROUP} HTTP/1.1", "Host: localhost", "Connection: close", f"Authorization: Bearer {token}")
    return "\r\n".join([*head, "", ""]).encode()


async def exchange(port: int, request: bytes, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> bytes:
    """All that comes back until the connection is closed."""
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(source, 0), ssl=tls, server_hostname=name
    )
    try:
        writer.write(request)
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


def status_of(answer: bytes) -> int:
    """The status of an answer; 0 where there is none."""
    line = answer.partition(b"\r\n")[0].split()
    return int(line[1]) if len(line) > 1 else 0
