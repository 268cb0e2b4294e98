"""The group that a request names, by the bytes with which it arrives: for a decision before they are parsed."""

from __future__ import annotations

import re
from typing import NamedTuple

from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN

_REQUEST = re.compile(
    rf"[A-Z]+ /v1/namespaces/({NAMESPACE_PATTERN})/groups/({NAME_PATTERN})(?:[/?][!-~]*)? HTTP/1\.1\r\n".encode()
)
_END_OF_HEAD = b"\r\n\r\n"


class NamedGroup(NamedTuple):
    """A group in its namespace."""

    namespace: str
    group_id: str


def named_group(received: bytes) -> NamedGroup | None:
    """The group in the path of the request with which these bytes begin; None unless its head is whole and plain.

    The bytes are parsed by the server that gets them, so that a mistake here costs a detour and nothing else.
    """
    matched = _REQUEST.match(received)
    if matched is None or _END_OF_HEAD not in received:
        return None
    return NamedGroup(matched[1].decode(), matched[2].decode())
