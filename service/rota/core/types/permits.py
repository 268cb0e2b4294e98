"""The `permits` protocol type: N permits for M members, each with a fencing token of its own (ADR 62); JSON.

The coordinator grants them. A member that has a permit keeps it, with its number and its token, for as long as it is a
member: no rebalance takes a permit away. One that is free goes to the member that has waited longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, structs
from msgspec.structs import replace

from rota.core.types.plugin import Generation, JoinedWith, ProtocolType, Readable, ServerSide
from rota.core.types.topics import TopicFacts
from rota.core.types.wire_format import MalformedMetadata, encode_object, read_object
from rota.protocol.fencing_token import NO_TOKEN

PROTOCOL_TYPE: Final = "permits"
PROTOCOL_NAME: Final = "server:permits"
MAX_PERMITS: Final = 1_000_000
_MOST_NAMED = 5


class Wish(Struct, frozen=True):
    """A member's metadata: how many permits the group should have, 1 to `MAX_PERMITS`. The lowest wish counts."""

    permits: Annotated[int, Meta(ge=1, le=MAX_PERMITS)]


class PermitShare(Struct, frozen=True):
    """What a member is assigned: a permit, or a place in the line.

    `generation_id` is the one that assigned it, and `member_id` the member that it was assigned to: a static member's
    successor finds its predecessor's here.
    """

    permit: int | None = None
    """0 to N - 1; None for a member that waits."""
    token: int = NO_TOKEN
    """Greater than every token that this permit had before; -1 for a member that waits."""
    of: int = 0
    """N: how many permits the group has."""
    place: int = 0
    """1 for the member that gets the next permit; 0 for one that has a permit."""
    generation_id: int = -1
    member_id: str = ""


def encode_wish(wish: Wish) -> bytes:
    return encode_object(structs.asdict(wish))


def decode_wish(metadata: bytes) -> Wish:
    """Raises `MalformedMetadata` for anything but `{"permits": N}`."""
    return read_object(metadata, Wish)


def encode_share(share: PermitShare) -> bytes:
    return encode_object(structs.asdict(share))


def decode_share(assignment: bytes) -> PermitShare:
    """No bytes at all are no permit. Raises `MalformedMetadata` for anything but a share."""
    return read_object(assignment, PermitShare) if assignment else PermitShare()


def grant(generation: Generation, _topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
    """Each member's permit, or its place in the line. No process loses a permit that it had.

    If members disagree on N, the lowest counts. A group with more holders than that grants nothing until enough of
    them have left.
    """
    permits = min((decode_wish(member.metadata).permits for member in generation.members), default=0)
    held = _kept(generation, permits)
    free = _free(permits, {share.permit for share in held.values()})
    line = 0
    shares: dict[str, bytes] = {}
    for member in generation.members:
        share = held.get(member.member_id)
        number = next(free, None) if share is None and len(held) < permits else None
        if number is not None:
            share = held[member.member_id] = PermitShare(number, member.fencing_token)
        line += share is None
        given = replace(share, place=0) if share is not None else PermitShare(place=line)
        given = replace(given, of=permits, generation_id=generation.generation_id, member_id=member.member_id)
        shares[member.member_id] = encode_share(given)
    return shares


def describe(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """The difference between two assignments, for the journal: which permits were granted, and how many wait."""
    shares = {member_id: decode_share(share) for member_id, share in after.items()}
    holders = [share for share in shares.values() if share.permit is not None]
    new = [
        f"permit {share.permit} to {member_id}"
        for member_id, share in shares.items()
        if share.permit is not None and _token_in(before.get(member_id, b"")) != share.token
    ]
    waiting, of = len(shares) - len(holders), max((share.of for share in shares.values()), default=0)
    more = [f"{len(new) - _MOST_NAMED} more"] if len(new) > _MOST_NAMED else []
    counts = f"{len(holders)} of {of} permits held, {waiting} waiting"
    return "; ".join((", ".join((*new[:_MOST_NAMED], *more)) or "no permit granted", counts))


def _kept(generation: Generation, permits: int) -> dict[str, PermitShare]:
    """The permits that members have from before, by member id. A number that two would have is the earlier one's.

    A static member's successor holds nothing yet: it gets its predecessor's permit only if fewer than N are held.
    """
    formers = [(member.member_id, _former(member, generation.generation_id)) for member in generation.members]
    kept: dict[str, PermitShare] = {}
    taken: set[int] = set()
    for member_id, share in sorted(formers, key=lambda former: former[1].member_id != former[0]):
        is_held = share.member_id == member_id
        if share.permit is not None and share.permit not in taken and (is_held or len(kept) < permits):
            taken.add(share.permit)
            kept[member_id] = share
    return kept


def _former(member: JoinedWith, generation_id: int) -> PermitShare:
    """What the member had, with a token of its own where the former token may be another process's, or too low.

    A static member's successor is another process. Generations jump where the store went back to an earlier state: then
    the permit may have had higher tokens, of which the store knows nothing.
    """
    try:
        share = decode_share(member.former)
    except MalformedMetadata:
        return PermitShare()
    follows = share.generation_id in (generation_id, generation_id - 1)
    if follows and share.member_id == member.member_id:
        return share
    return replace(share, token=member.fencing_token)


def _free(permits: int, taken: set[int | None]) -> Iterator[int]:
    return (number for number in range(permits) if number not in taken)


def _token_in(share: bytes) -> int:
    try:
        return decode_share(share).token
    except MalformedMetadata:
        return NO_TOKEN


def _read_wish(metadata: bytes) -> Readable:
    return structs.asdict(decode_wish(metadata))


def _read_share(assignment: bytes) -> Readable:
    share = decode_share(assignment)
    return {"permit": share.permit, "token": share.token, "of": share.of, "place": share.place}


PERMITS: Final = ProtocolType(
    PROTOCOL_TYPE,
    _read_wish,
    _read_share,
    server=ServerSide(PROTOCOL_NAME.__eq__, grant, check=decode_wish, of_members=True, describe=describe),
)
