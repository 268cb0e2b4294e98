"""An assignment that is brought up to date instead of computed anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.assignors import reassign
from tests.unit.assignors.worlds import deterministic

names = st.sampled_from([f"m{index}" for index in range(8)])


@deterministic
@given(st.sets(names, min_size=1), st.lists(st.tuples(st.sets(names), st.sets(names), st.integers(0, 9)), max_size=6))
def test_it_stays_complete_balanced_and_moves_little(
    first: set[str], changes: list[tuple[set[str], set[str], int]]
) -> None:
    shares = reassign({}, joined=first, added=range(20))
    items = 20
    for joined, gone, added in changes:
        left = gone - joined
        if not (shares.keys() | joined) - left:
            continue
        before = shares
        shares = reassign(before, joined=joined, left=left, added=range(items, items + added))
        items += added

        loads = [len(share) for share in shares.values()]
        assert sorted(item for share in shares.values() for item in share) == list(range(items))
        assert shares.keys() == (before.keys() | joined) - left
        assert max(loads) - min(loads) <= 1
        stayed = before.keys() & shares.keys()
        floor, extras = divmod(items, len(shares))
        above = sum(len(before[name]) > floor for name in stayed)
        could_keep = sum(min(len(before[name]), floor) for name in stayed) + min(above, extras)
        assert sum(len(set(before[name]) & set(shares[name])) for name in stayed) == could_keep


def test_unchanged_lists_are_shared_and_old_shares_untouched() -> None:
    before = {"a": [1, 2], "b": [3, 4], "c": [5]}

    after = reassign(before, left=["c"])

    assert before == {"a": [1, 2], "b": [3, 4], "c": [5]}
    assert after == {"a": [1, 2, 5], "b": [3, 4]}
    assert after["b"] is before["b"]


def test_without_members_there_is_nothing_to_hand_out_to() -> None:
    assert reassign({"a": [1]}, left=["a"]) == {}
