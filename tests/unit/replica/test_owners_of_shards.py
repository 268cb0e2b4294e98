"""The owners as of the last read: which replica is asked for a shard, and when this one should claim it."""

from __future__ import annotations

import pytest

from rota.core.replica.known_owners import UNCLAIMED_MS, KnownOwners
from rota.core.replica.ports import Replica, ShardOwner

ME, PEER = "r0", Replica("r1", "http://r1")


def known(*owners: ShardOwner, shards: int = 2) -> KnownOwners:
    made = KnownOwners(ME, shards)
    made.peers = [Replica("r2", "http://r2"), PEER]
    made.update(owners, 1_000)
    return made


def owned_by(replica_id: str, lease_left_ms: int, shard_id: int = 0) -> ShardOwner:
    return ShardOwner(shard_id, replica_id, f"http://{replica_id}", 1, lease_left_ms)


@pytest.mark.parametrize(
    ("owner", "peer"),
    [
        pytest.param(owned_by("r1", 1), PEER, id="up, with a lease"),
        pytest.param(owned_by("r1", 0), None, id="its lease is over"),
        pytest.param(owned_by("r9", 5_000), None, id="not up"),
        pytest.param(owned_by(ME, 5_000), None, id="this replica"),
    ],
)
def test_a_call_goes_to_the_owner_that_is_up_and_has_a_lease(owner: ShardOwner, peer: Replica | None) -> None:
    assert known(owner).peer_of(0) == peer


def test_a_shard_without_an_owner_has_no_peer() -> None:
    assert known().peer_of(0) is None


@pytest.mark.parametrize(
    ("owner", "is_free"), [(owned_by("r1", 1), False), (owned_by("r1", 0), True), (owned_by(ME, 9), True)]
)
def test_a_shard_is_free_without_a_lease_of_another_replica(owner: ShardOwner, is_free: bool) -> None:
    assert known(owner).is_free(0) is is_free


def test_a_shard_without_an_owner_is_free() -> None:
    assert known().is_free(0)


def test_a_read_replaces_the_last_one() -> None:
    owners = known(owned_by("r1", 5_000))
    owners.update([owned_by("r1", 5_000, shard_id=1)], 2_000)

    assert (owners.is_free(0), owners.is_free(1), owners.read_ms) == (True, False, 2_000)


def test_the_first_lease_to_end_frees_the_next_shard() -> None:
    owners = known(owned_by("r1", 700), owned_by("r1", 400, shard_id=1))

    assert owners.next_free_ms(()) == 1_400
    assert owners.next_free_ms({1}) == 1_700
    assert owners.next_free_ms({0, 1}) is None


@pytest.mark.parametrize("owners", [(), (owned_by("r1", 0),), (owned_by("r1", -20),)])
def test_a_shard_that_is_free_already_is_read_again_soon(owners: tuple[ShardOwner, ...]) -> None:
    assert known(*owners, shards=1).next_free_ms(()) == 1_000 + UNCLAIMED_MS


def test_a_lease_that_is_about_to_end_is_waited_for() -> None:
    assert known(owned_by("r1", 1), shards=1).next_free_ms(()) == 1_001


def test_before_the_first_read_every_shard_is_free() -> None:
    assert KnownOwners(ME, 2).next_free_ms(()) == UNCLAIMED_MS
