"""Odd requests from a seed, each with a second request in its body, and the answers of a connection one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

HIDDEN = b"/v1/hidden"
"""The target of the request in a body. No answer may name it: then a body was parsed as a request."""
BEAT = b'{"member_id":"m-1","generation_id":7}'
_BEAT_TARGET = "/v1/namespaces/default/groups/odd/heartbeat"
_WHOLE = b"DELETE %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % HIDDEN
_OPEN = b"DELETE %b HTTP/1.1\r\nHost: localhost\r\nX-Rest: " % HIDDEN
"""Its last header takes in the first line of the request that follows, and the request its credentials."""
_BODIES = (_WHOLE, _WHOLE, _OPEN, _OPEN, b"\r\n" + _WHOLE, b"0\r\n\r\n" + _WHOLE, b"}" + _WHOLE + _OPEN, BEAT, BEAT)

_BEAT_LINE = f"POST {_BEAT_TARGET} HTTP/1.1"
_METHODS = (
    "GET",
    "POST",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "CONNECT",
    "TRACE",
    "QUERY",
    "PRI",
    "get",
)
_TARGETS = ("/healthz", "/v1/whoami", _BEAT_TARGET, "http://localhost/healthz")
_ODD_TARGETS = (
    *(_BEAT_TARGET + "?x=1", "//localhost/healthz", "/%68ealthz", "*", "http://evil.example/v1/namespaces"),
    *("http://localhost", "http://u@localhost/", "HTTP://localhost?x", "http://a:b:c/", "ftp://localhost/healthz"),
    *("localhost:80", "healthz", "/\xff", "/a b"),
)
_ODD_VERSIONS = ("HTTP/1.0", "HTTP/1.0", "HTTP/2.0", "HTTP/1.2", "HTTP/1.1 ", "http/1.1", "")
Fields = tuple[str, ...]
_HOST: Fields = ("Host: localhost",)
_JSON: Fields = ("Content-Type: application/json",)
_NOTHING: Fields = ()
_ODD_HOSTS = (
    *(
        ("Host: localhost", "Host: evil.example"),
        ("Host: localhost", "Host: localhost"),
        ("Host: a b",),
        (),
        ("Host:",),
    ),
    *(("Host : localhost",), ("Host: evil.example",), (" Host: localhost",)),
)
_CONNECTIONS = (
    *((), ("Connection: keep-alive",), ("Connection: close",), ("Connection: Upgrade",)),
    *(("Connection: upgrade, keep-alive",), ("connection:UPGRADE",), ("Connection: keep-alive", "Connection: Upgrade")),
    *(("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk"), ("Connection: \tupgrade\t",)),
    *(("Connection: Transfer-Encoding, Upgrade",), ("Connection: close, upgrade",), ("Proxy-Connection: Upgrade",)),
)
_UPGRADES = ((), ("Upgrade: x",), ("Upgrade: websocket",), ("Upgrade: h2c",), ("uPGRADE: a, b",), ("Upgrade:",))
_EXPECTATIONS = (("Expect: 100-continue",), ("Expect: 200-ok",), ("Expect: 100-continue, x",))
_ODD_TYPES = ((), ("Content-Type: text/plain",), ("Content-Encoding: gzip",))

_LENGTHS = (
    *("Content-Length: +{n}", "Content-Length: 0{n}", "Content-Length: {n}, {n}", "Content-Length: -{n}"),
    *("Content-Length: 0x{n:x}", "Content-Length:\t{n}\t", "Content-Length : {n}", "Content-Length: {n}.0"),
    *(
        "Content-Length: {n}\r\nContent-Length: {n}",
        "Content-Length: 0\r\nContent-Length: {n}",
        "Content-Length:\r\n {n}",
    ),
    *("Content-Length: {n} {n}", "Content-Length: 18446744073709551616", "content-length:{n}", "Content-Length: {n}_0"),
)
_ENCODINGS = (
    *("chunked, chunked", "gzip, chunked", "chunked, identity", "identity", "xchunked", "chunked;q=1", "\x0bchunked"),
    *('"chunked"', "chunked,", ", chunked", "chun\r\n ked", "cHuNkEd", "\tchunked\t", "chunked\r\nX: y"),
    *("chunked\r\nTransfer-Encoding: identity", "chunked\r\nTransfer-Encoding: chunked", ""),
    *("identity\r\nTransfer-Encoding: chunked", "chunked\r\nContent-Length: {n}", "chunked\nX: y"),
    *("chunked\r\nContent-Length: 0", "gzip\r\nContent-Length: {n}"),
)
_SIZES = ("{n:x}", "{n:X}", "00{n:x}", "{n:x};a=b")
_ODD_SIZES = (*_SIZES, *_SIZES, '{n:x};a="\r"', "{n:x} ", " {n:x}", "0x{n:x}", "+{n:x}", "")
_ODD_ENDS_OF_CHUNKS = ("\r\n", "\r\n", "\r\n", "\n", "\r", "")
_TRAILERS = ("", "", "", "X: y\r\n", "Connection: Upgrade\r\nUpgrade: x\r\n", "Host: evil\r\n")
_ODD_TRAILERS = (
    *_TRAILERS,
    *_TRAILERS,
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "X : y\r\n",
    "X\r\n",
)
_ODD_ENDS_OF_LINES = (b"\n", b"\r", b"\r\r\n", b"\n\n")
_Choice = TypeVar("_Choice")


@dataclass(frozen=True, slots=True)
class OddRequest:
    """One request, in the parts in which it is sent."""

    parts: tuple[bytes, ...]
    is_head: bool
    is_whole: bool
    """All of its body is there; otherwise the second caller's request belongs to it."""
    is_well_framed: bool
    """Its body can be read in one way alone, and comes unasked; otherwise the connection may end behind the answer."""

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


def odd_request(random: Random) -> OddRequest:
    """A request with odd spellings. It has a body only if a header frames one: other bytes are the next request."""

    def choose(plain: Sequence[_Choice], odd: Sequence[_Choice], often: float = 0.1) -> _Choice:
        return random.choice(odd if random.random() < often else plain)

    framing, encoded, is_whole, is_well_framed = _framed(random, random.choice(_BODIES))
    method, line = "POST", _BEAT_LINE
    named: list[Fields] = [_HOST, _JSON]
    if random.random() < 0.7:  # Otherwise it is a plain member call.
        method = random.choice(_METHODS)
        line = f"{method} {choose(_TARGETS, _ODD_TARGETS, 0.3)} {choose(('HTTP/1.1',), _ODD_VERSIONS)}"
        named = [choose((_HOST,), _ODD_HOSTS), choose((_JSON,), _ODD_TYPES), choose((_NOTHING,), _EXPECTATIONS)]
    expects = any(field.startswith("Expect") for group in named for field in group)
    named += [choose((_NOTHING,), _CONNECTIONS, 0.5), choose((_NOTHING,), _UPGRADES, 0.5)]
    fields = [field for group in named for field in group] + framing
    random.shuffle(fields)
    end = choose((b"\r\n",), _ODD_ENDS_OF_LINES, 0.05)
    data = end.join(each.encode("latin-1") for each in (line, *fields)) + b"\r\n\r\n" + encoded
    cuts = sorted(random.randrange(1, len(data)) for _ in range(random.choice((0, 0, 1, 2))))
    parts = tuple(data[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True) if end > begin)
    return OddRequest(parts, method == "HEAD", is_whole, is_well_framed and not expects)


def _framed(random: Random, body: bytes) -> tuple[list[str], bytes, bool, bool]:
    """The headers that frame the body, the body as it is sent, `is_whole` and `is_well_framed`."""
    size = len(body)
    match random.choice(("none", "length", "length", "chunks", "odd chunks", "odd length", "odd encoding", "short")):
        case "none":
            return [], b"", True, True
        case "length":
            return [f"Content-Length: {size}"], body, True, True
        case "chunks":
            return ["Transfer-Encoding: chunked"], _chunked(random, body), True, True
        case "odd chunks":
            return ["Transfer-Encoding: chunked"], _chunked(random, body, odd=True), True, False
        case "odd length":
            return [random.choice(_LENGTHS).format(n=size)], body, True, False
        case "short":
            return [f"Content-Length: {size + random.randint(200, 400)}"], body, False, False
        case _:
            # They are chunks, or as long as `Content-Length` says: there is no third way to read them.
            encoded = _chunked(random, body)
            return ["Transfer-Encoding: " + random.choice(_ENCODINGS).format(n=len(encoded))], encoded, True, False


def _chunked(random: Random, body: bytes, *, odd: bool = False) -> bytes:
    sizes: Fields = _ODD_SIZES if odd else _SIZES
    ends: Fields = _ODD_ENDS_OF_CHUNKS if odd else ("\r\n",)
    trailers: Fields = _ODD_TRAILERS if odd else _TRAILERS
    at = random.randint(0, len(body))
    chunks = [
        random.choice(sizes).format(n=len(part)).encode() + b"\r\n" + part + random.choice(ends).encode()
        for part in (body[:at], body[at:])
        if part
    ]
    return b"".join(chunks) + b"0\r\n" + random.choice(trailers).encode() + b"\r\n"


# --- the second caller --------------------------------------------------------------------------------


def second_target(number: int) -> str:
    """A path that no route has: its 404 names it, so it is told from the answer to any other request."""
    return f"/v1/second/{number}"


def second_request(number: int, *headers: str) -> bytes:
    return "\r\n".join([f"GET {second_target(number)} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def is_second(answer: Answer, number: int) -> bool:
    return answer.status == 404 and f"GET {second_target(number)}" == answer.detail.rpartition(": ")[2]


# --- answers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a connection, without the 1xx before it."""

    status: int
    closes: bool
    body: bytes

    @property
    def detail(self) -> str:
        """That of a problem document; empty for any other body."""
        try:
            return str(json.loads(self.body)["detail"])
        except (ValueError, KeyError, TypeError):
            return ""


_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


def take_answer(data: bytes, *, to_head: bool) -> tuple[Answer, bytes] | None:
    """The first answer in `data` and the bytes behind it; None while it is not whole. AssertionError if it is none."""
    while True:
        head = _HEAD.match(data)
        if head is None:
            assert b"\r\n\r\n" not in data, f"this is no answer: {data[:200]!r}"
            return None
        data = data[head.end() :]
        if not head[1].startswith(b"1"):
            break
    status = int(head[1])
    fields = dict(line.lower().split(b": ", 1) for line in head[2].splitlines())
    closes = b"close" in fields.get(b"connection", b"")
    # The refusal of bytes that are no HTTP has a body, whatever they may have meant, and closes.
    if status in (204, 304) or (to_head and not (closes and data.startswith(b"{"))):
        return Answer(status, closes, b""), data
    if fields.get(b"transfer-encoding") == b"chunked":
        found = _unchunked(data)
        return None if found is None else (Answer(status, closes, found[0]), found[1])
    assert b"content-length" in fields, f"an answer whose end cannot be found: {head[0]!r}"
    size = int(fields[b"content-length"])
    return None if len(data) < size else (Answer(status, closes, data[:size]), data[size:])


def _unchunked(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while b"\r\n" in data:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        if len(data) < size + 2:
            return None
        if not size:
            return body, data[2:]
        body, data = body + data[:size], data[size + 2 :]
    return None


def answers_in(data: bytes, *, to_head: bool) -> list[Answer]:
    """All answers of a connection that has ended; `to_head` says that the first one is to HEAD."""
    found: list[Answer] = []
    while data:
        taken = take_answer(data, to_head=to_head and not found)
        assert taken is not None, f"an answer that is not whole: {data[:200]!r}"
        found.append(taken[0])
        data = taken[1]
    return found


def complaint(request: OddRequest, answers: Sequence[Answer], number: int) -> str:
    """What is wrong with the answers to a request and to the second caller's behind it; empty if they are right."""
    if any(HIDDEN.decode() in each.detail for each in answers):
        return "the body was answered as a request"
    if not request.is_whole:
        # What follows belongs to its body. It is answered once, or the connection ends first.
        return "" if len(answers) <= 1 else f"{len(answers)} answers to half a request"
    match answers:
        case [_, second]:
            return "" if is_second(second, number) else "the second caller has another's answer"
        case [only]:
            ends = only.closes or not request.is_well_framed
            return "" if ends else "the second caller has no answer, and the first one does not close"
        case _:
            return f"{len(answers)} answers to two requests"
