"""The type `permits`: which member keeps a permit, which gets the next one, and with which token (ADR 62)."""

from __future__ import annotations

from random import Random

import pytest

from rota.core.types.permits import (
    PROTOCOL_NAME,
    PermitShare,
    Wish,
    decode_share,
    describe,
    encode_share,
    encode_wish,
    grant,
)
from rota.core.types.plugin import Generation, JoinedWith
from rota.core.types.registry import readable_assignment, readable_metadata, why_not_assigned
from rota.protocol.fencing_token import NO_TOKEN, fencing_token

Shares = dict[str, bytes]


def granted(generation_id: int, members: dict[str, int], former: Shares | None = None, **tokens: int) -> Shares:
    """What members with these wishes, in this order of joining, are assigned; `tokens` of those that took a place."""
    joined = [
        JoinedWith(
            member_id,
            None,
            encode_wish(Wish(permits)),
            (former or {}).get(member_id, b""),
            tokens.get(member_id, fencing_token(generation_id)),
        )
        for member_id, permits in members.items()
    ]
    return grant(Generation(generation_id, joined[0].member_id, PROTOCOL_NAME, joined), {})


def permits(shares: Shares) -> dict[str, int | None]:
    return {member_id: decode_share(share).permit for member_id, share in shares.items()}


def tokens(shares: Shares) -> dict[str, int]:
    return {member_id: decode_share(share).token for member_id, share in shares.items()}


def test_the_first_members_get_permits_and_others_places() -> None:
    shares = granted(1, {"a": 2, "b": 2, "c": 2, "d": 2})

    assert permits(shares) == {"a": 0, "b": 1, "c": None, "d": None}
    assert [decode_share(share).place for share in shares.values()] == [0, 0, 1, 2]
    assert tokens(shares) == {"a": fencing_token(1), "b": fencing_token(1), "c": NO_TOKEN, "d": NO_TOKEN}


def test_a_free_permit_goes_to_the_longest_waiting_member() -> None:
    before = granted(1, {"a": 2, "b": 2, "c": 2, "d": 2})

    after = granted(2, {"b": 2, "c": 2, "d": 2}, before)

    assert permits(after) == {"b": 1, "c": 0, "d": None}
    assert tokens(after) == {"b": fencing_token(1), "c": fencing_token(2), "d": NO_TOKEN}


def test_a_lower_wish_takes_no_permit_away_and_grants_none() -> None:
    before = granted(1, {"a": 2, "b": 2})

    after = granted(2, {"a": 2, "b": 2, "c": 1}, before)
    later = granted(3, {"b": 2, "c": 1}, after)
    at_last = granted(4, {"c": 1}, later)

    assert permits(after) == {"a": 0, "b": 1, "c": None}
    assert permits(later) == {"b": 1, "c": None}, "one permit is held, and one is all that there is"
    assert permits(at_last) == {"c": 0}


def test_a_static_successor_has_the_permit_with_a_higher_token() -> None:
    before = granted(4, {"a": 1, "b": 1})
    before["a2"] = before.pop("a")

    after = granted(4, {"a2": 1, "b": 1}, before, a2=fencing_token(4, 1))
    again = granted(4, {"a2": 1, "b": 1}, after, a2=fencing_token(4, 1), b=fencing_token(4, 2))

    assert tokens(after) == {"a2": fencing_token(4, 1), "b": NO_TOKEN}
    assert tokens(again) == tokens(after)


@pytest.mark.parametrize("order", [("a2", "b"), ("b", "a2")])
def test_a_static_successor_has_no_permit_above_a_lower_wish(order: tuple[str, str]) -> None:
    """Seed 20589 of the groups: two ran by one permit, since the successor had what only its predecessor had held."""
    before = granted(1, {"b": 2, "a": 2})
    before["a2"] = before.pop("a")

    after = granted(2, dict.fromkeys(order, 1), before)

    assert permits(after) == {"b": 0, "a2": None}


def test_after_a_generation_jumps_a_holder_has_a_new_token() -> None:
    before = granted(4, {"a": 1})

    assert tokens(granted(5, {"a": 1}, before)) == {"a": fencing_token(4)}
    assert tokens(granted(71, {"a": 1}, before)) == {"a": fencing_token(71)}


def test_bytes_of_another_protocol_are_no_permit() -> None:
    assert permits(granted(2, {"a": 1}, {"a": b"\x00\x01"})) == {"a": 0}


def test_a_number_that_two_members_claim_is_the_earlier_ones() -> None:
    both = encode_share(PermitShare(0, 7, 2, 0, 1, "a")), encode_share(PermitShare(0, 9, 2, 0, 1, "b"))

    assert permits(granted(2, {"a": 2, "b": 2}, {"a": both[0], "b": both[1]})) == {"a": 0, "b": 1}


@pytest.mark.parametrize("metadata", [b"{}", b'{"permits":0}', b'{"permits":true}', b'{"permits":1e3}'])
def test_a_member_that_does_not_say_how_many_is_refused(metadata: bytes) -> None:
    assert "permits`" in why_not_assigned("permits", PROTOCOL_NAME, metadata)


def test_metadata_that_is_no_json_is_refused() -> None:
    assert "not JSON" in why_not_assigned("permits", PROTOCOL_NAME, b"\x00")


@pytest.mark.parametrize("share", [b'{"permit":"0","member_id":"a"}', b'{"permit":0,"member_id":1}', b"\x01"])
def test_bytes_that_are_no_share_are_reported_as_such(share: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expected|not JSON"):
        decode_share(share)


def test_both_are_shown_decoded() -> None:
    share = granted(3, {"a": 2})["a"]

    assert readable_metadata("permits", encode_wish(Wish(3))) == {"permits": 3}
    assert readable_assignment("permits", share) == {"permit": 0, "token": fencing_token(3), "of": 2, "place": 0}
    assert readable_assignment("permits", b"") == {"permit": None, "token": NO_TOKEN, "of": 0, "place": 0}


def test_the_journal_says_which_permits_were_granted() -> None:
    before = granted(1, {"a": 2, "b": 2, "c": 2})
    after = granted(2, {"b": 2, "c": 2, "d": 2}, before)

    assert describe({}, before) == "permit 0 to a, permit 1 to b; 2 of 2 permits held, 1 waiting"
    assert describe(before, after) == "permit 0 to c; 2 of 2 permits held, 1 waiting"
    assert describe(after, after) == "no permit granted; 2 of 2 permits held, 1 waiting"
    many = granted(1, dict.fromkeys("abcdefgh", 9))
    assert describe({}, many).endswith("permit 4 to e, 3 more; 8 of 9 permits held, 0 waiting")


class _Group:
    """A group under changes drawn from a seed, with what must hold after each of its generations."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"permits {seed}")
        self.generation_id = 0
        self.members: dict[str, int] = {}
        self.shares: Shares = {}
        self.names = 0
        self.highest: dict[int, int] = {}

    def change(self) -> None:
        draw = self.rng.random()
        if draw < 0.5 or not self.members:
            self.names += 1
            self.members[f"m{self.names}"] = self.rng.choice((1, 2, 2, 3, 3, 3))
        elif draw < 0.85:
            del self.members[self.rng.choice(list(self.members))]
        elif draw < 0.95:
            self.members[self.rng.choice(list(self.members))] = self.rng.randint(1, 4)
        else:
            self.generation_id += 60
        self.generation_id += 1

    def take_over(self) -> None:
        """A static member is back under another id, within the generation."""
        old, new = self.rng.choice(list(self.members)), f"{self.names}-{self.rng.random()}"
        self.members = {new if name == old else name: wish for name, wish in self.members.items()}
        held = self.shares.pop(old)
        self.check(granted(self.generation_id, self.members, {**self.shares, new: held}, **{new: self._takeover()}))

    def _takeover(self) -> int:
        number = 1 + max((token & 0xFFFFF for token in self.highest.values()), default=0)
        return fencing_token(self.generation_id, number)

    def assign(self) -> None:
        jumped = not any(
            decode_share(share).generation_id in (self.generation_id, self.generation_id - 1)
            for share in self.shares.values()
        )
        former = {name: share for name, share in self.shares.items() if name in self.members}
        shares = granted(self.generation_id, self.members, former)
        for name, share in former.items():
            had, has = decode_share(share), decode_share(shares[name])
            assert had.permit is None or (had.permit, jumped or had.token) == (has.permit, jumped or has.token)
        self.check(shares)

    def check(self, shares: Shares) -> None:
        n = min(self.members.values())
        had = {name for name, share in self.shares.items() if decode_share(share).permit is not None}
        held = {name: share for name, share in permits(shares).items() if share is not None}
        assert len(set(held.values())) == len(held), "two members hold one permit"
        assert len(held) >= min(n, len(self.members)), "a permit is free while a member waits"
        new = [name for name in held if name not in had and not name[0].isdigit()]
        assert len(held) <= n or not new, "a permit was granted above the lowest wish"
        assert not new or max(map(held.__getitem__, new)) < n
        waiting = [name for name in self.members if name not in held]
        order = list(self.members)
        assert all(order.index(one) < order.index(other) for one in new for other in waiting), "not in order of joining"
        for name, permit in held.items():
            token, before = decode_share(shares[name]).token, self.highest.get(permit, NO_TOKEN)
            same = name in self.shares and decode_share(self.shares[name]).token == token
            assert token > before or (same and token == before), f"permit {permit}: {before} before {token}"
            self.highest[permit] = token
        self.shares = shares


@pytest.mark.parametrize("seed", range(40))
def test_no_sequence_of_changes_breaks_a_rule(seed: int) -> None:
    group = _Group(seed)
    for _ in range(40):
        group.change()
        if not group.members:
            group.shares = {}
            continue
        group.assign()
        if group.rng.random() < 0.15:
            group.take_over()
