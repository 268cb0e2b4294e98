"""Records of API tokens as JSON values: how files and the store's table keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.access.document import read_rule, write_rule
from rota.access.tokens import TokenRecord

_NUMBERS = ("created_at_ms", "expires_at_ms", "revoked_at_ms", "last_used_at_ms")


def encode_record(record: TokenRecord) -> dict[str, Any]:
    return {
        "token_id": record.token_id,
        "name": record.name,
        "digest": record.digest,
        "grants": [write_rule(rule) for rule in record.grants],
        "created_at_ms": record.created_at_ms,
        "expires_at_ms": record.expires_at_ms,
        "revoked_at_ms": record.revoked_at_ms,
        "note": record.note,
        "last_used_at_ms": record.last_used_at_ms,
    }


def decode_record(document: Mapping[str, Any]) -> TokenRecord:
    """Raises KeyError, TypeError or ValueError for anything but a record."""
    numbers = {name: document.get(name) for name in _NUMBERS}
    if not all(value is None or type(value) is int for value in numbers.values()):
        raise TypeError("times are numbers")
    return TokenRecord(
        str(document["token_id"]),
        str(document["name"]),
        str(document["digest"]),
        tuple(read_rule(rule) for rule in document.get("grants", ())),
        created_at_ms=numbers["created_at_ms"] or 0,
        expires_at_ms=numbers["expires_at_ms"],
        revoked_at_ms=numbers["revoked_at_ms"],
        note=str(document.get("note", "")),
        last_used_at_ms=numbers["last_used_at_ms"],
    )
