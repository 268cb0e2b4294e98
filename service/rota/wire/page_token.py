"""Page tokens: opaque to the caller, the last id of the page before to us."""

# ruff: noqa: ARG002 — every kind of value has the same signature, though not all need the limits.
from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_topic
from rota.protocol.limits import Limits
from rota.wire.fields import Schema, invalid


@dataclass(frozen=True, slots=True)
class PageToken:
    """Group ids and topics have the same characters, so one check serves both."""

    def decode(self, value: Any, limits: Limits) -> str:
        if value == "":
            return ""
        try:
            last_id = urlsafe_b64decode(value.encode("ascii")).decode("ascii")
            check_topic(last_id)
        except (AttributeError, ValueError, binascii.Error, RejectedRequest):
            raise invalid("must be a token that a former page gave") from None
        return last_id

    def encode(self, value: str) -> str:
        return urlsafe_b64encode(value.encode("ascii")).decode("ascii")

    def schema(self, limits: Limits) -> Schema:
        return {"type": "string", "maxLength": 400}
