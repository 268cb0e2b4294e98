"""What the bytes of an assignment mean, as units of work that can be counted and followed."""

from __future__ import annotations

import importlib
from base64 import b64decode
from collections.abc import Callable, Iterable
from functools import lru_cache

from rota.pipeline.failures import PipelineFailed
from rota.types import MalformedMetadata
from rota.types.consumer import PROTOCOL_TYPE, decode_assignment

Decoder = Callable[[bytes], Iterable[str]]
"""Names of the units in one member's assignment."""
Shares = dict[str, list[str]]
"""Member id to the units that it holds."""

_SMALL = 4096
"""Characters of an assignment that is worth remembering, and that a thousand of which are no burden."""


def decode_shares(assignments: list[list[str]], protocol_type: str, decoder: Decoder | None = None) -> Shares | None:
    """The share of each member; None where these bytes mean nothing to us: of another type, or malformed."""
    decode = decoder or _BUILT_IN.get(protocol_type)
    if decode is None:
        return None
    try:
        return {member_id: list(_units(decode, encoded)) for member_id, encoded in assignments}
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


def _units(decode: Decoder, encoded: str) -> Iterable[str]:
    if decode is _consumer_units and len(encoded) <= _SMALL:
        return _small_consumer_units(encoded)
    return decode(b64decode(encoded))


@lru_cache(maxsize=1024)
def _small_consumer_units(encoded: str) -> tuple[str, ...]:
    """From one generation to the next most shares are the same bytes, though perhaps another member's."""
    return tuple(_consumer_units(b64decode(encoded)))


def _consumer_units(assignment: bytes) -> list[str]:
    return [f"{topic}/{partition}" for topic, partition in decode_assignment(assignment).partitions]


_BUILT_IN: dict[str, Decoder] = {PROTOCOL_TYPE: _consumer_units}
