"""When a shard counts as free: by the store's clock, and not by one that has just been set."""

from __future__ import annotations

import pytest

from rota.core.replica.known_owners import SLACK_MS, Ahead, KnownOwners
from rota.core.replica.leases import Leases
from rota.core.replica.owned_shard import Now
from rota.core.replica.ports import RELEASED, Replica, ShardOwner

LEASE_MS = 1_000


class Reader:
    """A replica that reads the owner of one shard, another replica, from a store with a clock that can be set."""

    def __init__(self) -> None:
        self.known = KnownOwners("me", 1)
        self.leases = Leases(Replica("me", ""), self.known, lease_ms=LEASE_MS)
        self.now_ms, self.ahead_ms, self.lease_until_ms = 0, 3_600_000, 3_600_000 + LEASE_MS

    def read(self, *, at_ms: int, takes_ms: int = 2) -> bool:
        """Read the owners; is the shard to be claimed?"""
        self.now_ms = at_ms + takes_ms
        left_ms = self.lease_until_ms - (at_ms + takes_ms // 2 + self.ahead_ms)
        owner = ShardOwner(0, "another", "", 1, left_ms, lease_until_ms=self.lease_until_ms)
        self.known.update([owner], at_ms, self.now_ms)
        return self.leases._is_free(0, Now(0, self.now_ms))


def test_a_lease_that_is_over_makes_its_shard_free() -> None:
    reader = Reader()

    assert [reader.read(at_ms=at_ms) for at_ms in (0, 500, 990, 1_010)] == [False, False, False, True]


@pytest.mark.parametrize("by_ms", [2_000, 86_400_000])
def test_a_clock_that_was_set_forwards_ends_no_lease(by_ms: int) -> None:
    reader = Reader()
    reader.read(at_ms=0)

    reader.ahead_ms += by_ms

    assert [reader.read(at_ms=at_ms) for at_ms in (300, 600, 1_290, 1_310)] == [False, False, False, True]


def test_a_clock_that_was_set_back_and_forth_ends_no_lease() -> None:
    reader = Reader()
    reader.read(at_ms=0)
    reader.ahead_ms -= 5_000
    reader.read(at_ms=300)
    reader.lease_until_ms = 400 + reader.ahead_ms + LEASE_MS  # The owner renews.

    reader.ahead_ms += 5_000

    assert not reader.read(at_ms=600)


def test_a_slow_read_shows_no_step_and_leaves_doubt() -> None:
    reader = Reader()
    reader.read(at_ms=0, takes_ms=400)

    reader.ahead_ms += 300

    assert not reader.read(at_ms=500, takes_ms=400)
    assert reader.known.clock_set_ms == 400
    assert not reader.read(at_ms=950, takes_ms=2)
    assert reader.known.clock_set_ms == 952


def test_the_offset_of_a_clock_is_less_sure_with_time() -> None:
    assert Ahead(100, 110, 1_000).seen_later(3_000) == Ahead(98, 112, 3_000)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_was_set_if_it_differs_beyond_the_slack(sign: int) -> None:
    reader = Reader()
    reader.read(at_ms=9_000, takes_ms=0)
    reader.ahead_ms += sign * SLACK_MS
    reader.read(at_ms=9_100, takes_ms=0)
    assert reader.known.clock_set_ms == 9_000

    reader.ahead_ms += sign * (2 * SLACK_MS + 1)
    reader.read(at_ms=9_200, takes_ms=0)

    assert reader.known.clock_set_ms == 9_200


def test_a_slow_read_delays_when_a_shard_becomes_free() -> None:
    reader = Reader()
    reader.read(at_ms=0, takes_ms=400)

    left_ms, doubt_ms = LEASE_MS - 200, 400 - SLACK_MS
    assert reader.known.next_free_ms(()) == left_ms + doubt_ms


@pytest.mark.parametrize(("over_ms", "is_free"), [(399 - SLACK_MS, False), (400 - SLACK_MS, True)])
def test_a_slow_read_leaves_doubt_whether_a_lease_is_over(over_ms: int, is_free: bool) -> None:
    reader = Reader()
    reader.lease_until_ms = reader.ahead_ms + 200 - over_ms

    reader.read(at_ms=0, takes_ms=400)

    assert reader.known.is_free(0) is is_free


def test_a_released_shard_needs_no_clock() -> None:
    reader = Reader()
    reader.lease_until_ms = RELEASED
    reader.read(at_ms=100)

    assert reader.known.is_released(0)


def test_a_read_that_comes_late_releases_no_shard() -> None:
    """Found by the simulator: another replica had claimed the shard since, and the store's clock was set forwards."""
    known = KnownOwners("me", 1)
    before = known.memory.ask()
    claimed = ShardOwner(0, "another", "", 3, 900, lease_until_ms=1_000)

    known.update([claimed], 20, 24, known.memory.ask())
    known.update([ShardOwner(0, "a third", "", 2, -100, lease_until_ms=RELEASED)], 10, 40, before)

    assert known.owners == {0: claimed}
    assert not known.is_free(0)
    assert known.read_ms == 20


def test_a_row_of_an_earlier_epoch_counts_after_a_setback() -> None:
    known = KnownOwners("me", 1)
    known.update([ShardOwner(0, "another", "", 3, 900, lease_until_ms=1_000)], 20, 24, known.memory.ask())
    earlier = ShardOwner(0, "a third", "", 2, -100, lease_until_ms=RELEASED)

    known.update([earlier], 30, 34, known.memory.ask())

    assert known.owners == {0: earlier}


def test_a_clock_that_was_set_lets_a_lease_last_its_length() -> None:
    reader = Reader()
    reader.known.clock_set_ms = 500
    reader.known.update([ShardOwner(0, "another", "", 1, 0, lease_until_ms=1)], 500)

    assert not reader.leases._is_free(0, Now(0, 500 + LEASE_MS - 1))
    assert reader.leases._is_free(0, Now(0, 500 + LEASE_MS))


def test_the_first_read_counts_as_if_the_clock_had_been_set() -> None:
    reader = Reader()
    reader.lease_until_ms = reader.ahead_ms - 1

    assert [reader.read(at_ms=at_ms) for at_ms in (100, 600, 1_099, 1_110)] == [False, False, False, True]


def test_a_released_shard_is_free_at_the_first_read() -> None:
    reader = Reader()
    reader.lease_until_ms = RELEASED

    assert reader.read(at_ms=100)


def test_a_released_shard_is_free_although_a_clock_was_set() -> None:
    reader = Reader()
    reader.known.clock_set_ms = 500
    reader.known.update([ShardOwner(0, "another", "", 1, 0, lease_until_ms=RELEASED)], 500)

    assert reader.leases._is_free(0, Now(0, 500))


def test_quick_reads_make_up_for_slow_ones() -> None:
    reader = Reader()

    reader.read(at_ms=0)
    reader.read(at_ms=400, takes_ms=500)

    assert reader.read(at_ms=1_010)


def test_a_shard_of_no_other_replica_is_free_whatever_the_clock() -> None:
    reader = Reader()
    reader.read(at_ms=0)
    reader.ahead_ms += 10_000
    reader.read(at_ms=300)

    reader.known.update([ShardOwner(0, "me", "", 2, -5, lease_until_ms=1)], 302, 303)

    assert reader.leases._is_free(0, Now(0, 303))
