"""What the bytes of an assignment mean, as units of work that can be counted and followed."""

from __future__ import annotations

import importlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from rota.core.types import MalformedMetadata, consumer, leader, permits, worker
from rota.core.types.consumer import units_of as partitions_of
from rota.core.types.worker import units_of as work_of
from rota.pipeline.failures import PipelineFailed

Decoder = Callable[[bytes], Iterable[str]]
"""Names of the units in one member's assignment."""
Decoders = Mapping[str, Decoder]
"""By protocol type: for types that only their users can read."""
Shares = dict[str, list[str]]
"""Member id to the units that it holds."""

_SMALL = 4096
"""Characters of an assignment that is worth remembering, and that a thousand of which are no burden."""
LEADERSHIP = "leadership"
"""The one unit of an election."""


def decode_shares(assignments: list[list[str]], protocol_type: str, decoders: Decoders | None = None) -> Shares | None:
    """The share of each member; None where these bytes mean nothing to us: of another type, or malformed."""
    own = (decoders or {}).get(protocol_type)
    read = _BUILT_IN.get(protocol_type)
    if own is None and read is None:
        return None
    try:
        if own is not None:
            return {member_id: list(own(b64decode(encoded))) for member_id, encoded in assignments}
        assert read is not None
        return {member_id: read(member_id, encoded) for member_id, encoded in assignments}
    except (MalformedMetadata, ValueError):
        return None


def load_decoders(named: str) -> Decoders:
    """The functions that `TYPE=MODULE:FUNCTION` names; several are separated by commas."""
    return {type_: _loaded(each) for type_, each in map(_split, filter(None, named.split(",")))}


def _split(named: str) -> tuple[str, str]:
    type_, equals, function = named.strip().partition("=")
    if not equals or not type_:
        raise PipelineFailed(f"a decoder is named TYPE=MODULE:FUNCTION, with the protocol type, and {named} is none")
    return type_, function


def _loaded(named: str) -> Decoder:
    module, colon, function = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise PipelineFailed(f"there is no decoder {named}: {error}") from error
    if not colon or not callable(found):
        raise PipelineFailed(f"a decoder is named TYPE=MODULE:FUNCTION, and {named} is no function")
    return found  # type: ignore[no-any-return]  # what a user names is what a user gets


def _partitions(_member_id: str, encoded: str) -> list[str]:
    # From one generation to the next most shares are the same bytes, though perhaps another member's.
    return list(_small_partitions(encoded) if len(encoded) <= _SMALL else partitions_of(b64decode(encoded)))


@lru_cache(maxsize=1024)
def _small_partitions(encoded: str) -> tuple[str, ...]:
    return tuple(partitions_of(b64decode(encoded)))


def _work(_member_id: str, encoded: str) -> list[str]:
    return work_of(b64decode(encoded))


def _leadership(member_id: str, encoded: str) -> list[str]:
    """All members get the election; the leader holds it."""
    return [LEADERSHIP] if leader.decode_election(b64decode(encoded)).leader_id == member_id else []


def _permit(_member_id: str, encoded: str) -> list[str]:
    permit = permits.decode_share(b64decode(encoded)).permit
    return [] if permit is None else [f"permit/{permit}"]


_BUILT_IN: dict[str, Callable[[str, str], list[str]]] = {
    consumer.PROTOCOL_TYPE: _partitions,
    worker.PROTOCOL_TYPE: _work,
    leader.PROTOCOL_TYPE: _leadership,
    permits.PROTOCOL_TYPE: _permit,
}
"""By protocol type: the units of a member's share, which is base64."""
