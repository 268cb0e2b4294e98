"""What the bytes of an assignment mean, as units of work that can be counted and followed."""

from __future__ import annotations

import importlib
from base64 import b64decode
from collections.abc import Callable, Iterable

from rota.pipeline.failures import PipelineFailed
from rota.types import MalformedMetadata
from rota.types.consumer import PROTOCOL_TYPE, decode_assignment

Decoder = Callable[[bytes], Iterable[str]]
"""Names of the units in one member's assignment."""
Shares = dict[str, list[str]]
"""Member id to the units that it holds."""


def decode_shares(assignments: list[list[str]], protocol_type: str, decoder: Decoder | None = None) -> Shares | None:
    """Who got what; None where these bytes mean nothing to us: of another type, or malformed."""
    decode = decoder or _BUILT_IN.get(protocol_type)
    if decode is None:
        return None
    try:
        return {member_id: list(decode(b64decode(encoded))) for member_id, encoded in assignments}
    except (MalformedMetadata, ValueError):
        return None


def load_decoder(named: str) -> Decoder:
    """The function that `module:function` names."""
    module, colon, function = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PipelineFailed(f"there is no decoder {named}: {error}") from error
    if not colon or not callable(found):
        raise PipelineFailed(f"a decoder is named module:function, and {named} is none")
    return found  # type: ignore[no-any-return]  # what a user names is what a user gets


def _consumer_units(assignment: bytes) -> list[str]:
    return [f"{topic}/{partition}" for topic, partition in decode_assignment(assignment).partitions]


_BUILT_IN: dict[str, Decoder] = {PROTOCOL_TYPE: _consumer_units}
