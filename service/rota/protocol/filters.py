"""Texts that stand for something else on the wire: page tokens, and the states that a filter names."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.ids import check_topic
from rota.protocol.suggestions import unknown

STATE_NAMES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
_BLANKS = " \t"
_BY_FOLDED = {name.casefold(): name for name in STATE_NAMES}


def read_page_token(token: str) -> str:
    """The last id of the former page, `""` for the first page. A group id and a topic have the same characters."""
    try:
        last_id = urlsafe_b64decode(token.encode("ascii")).decode("ascii")
        if token:
            check_topic(last_id)
    except (ValueError, binascii.Error, RejectedRequest):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "must be a token that a former page gave") from None
    return last_id


def write_page_token(last_id: str) -> str:
    return urlsafe_b64encode(last_id.encode("ascii")).decode("ascii")


def read_states(texts: Sequence[str]) -> tuple[str, ...]:
    """The states that texts name, in any case; a text may name several between commas."""
    return tuple(dict.fromkeys(name for text in texts for name in _names_in(text)))


def _names_in(text: str) -> Iterator[str]:
    for part in text.split(","):
        name = part.strip(_BLANKS)
        if name and name.casefold() not in _BY_FOLDED:
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, unknown("state", name, STATE_NAMES))
        if name:
            yield _BY_FOLDED[name.casefold()]


def _any_case(name: str) -> str:
    return "".join(f"[{letter.upper()}{letter.lower()}]" for letter in name)


_ONE = f"[{_BLANKS}]*(?:{'|'.join(map(_any_case, STATE_NAMES))})?[{_BLANKS}]*"
STATES_PATTERN = f"^{_ONE}(?:,{_ONE})*$"
"""What a text of `read_states` looks like, for JSON schemas."""
