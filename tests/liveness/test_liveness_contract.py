"""What every liveness store does: times of hearing by its own clock, which only move forward."""

from __future__ import annotations

from rota.core.group.sessions import MemberName
from rota.core.replica.ports import Liveness, ShardNews

A, B, C = (("default", "orders", f"worker/{name}-ü") for name in "abc")
SLACK_MS = 5_000
"""What passes between two calls on a machine that is busy with other tests."""


async def reported(liveness: Liveness, seen: dict[MemberName, int], *gone: MemberName, shard_id: int = 7) -> list[int]:
    return await liveness.publish([ShardNews(shard_id, seen, gone)])


def is_about(ms_ago: int | None, expected_ms: int) -> bool:
    return ms_ago is not None and expected_ms <= ms_ago < expected_ms + SLACK_MS


async def test_what_was_published_is_read_back(liveness: Liveness) -> None:
    await reported(liveness, {A: 0, B: 60_000})

    known = await liveness.read(7)

    assert set(known.seen_ms_ago) == {A, B}
    assert is_about(known.seen_ms_ago[A], 0)
    assert is_about(known.seen_ms_ago[B], 60_000)
    assert is_about(known.published_ms_ago, 0)


async def test_a_shard_that_no_owner_published_is_unknown(liveness: Liveness) -> None:
    await reported(liveness, {A: 0})

    known = await liveness.read(8)

    assert (dict(known.seen_ms_ago), known.published_ms_ago) == ({}, None)


async def test_a_member_is_never_seen_earlier_than_it_was(liveness: Liveness) -> None:
    await reported(liveness, {A: 10_000})
    await reported(liveness, {A: 60_000})

    assert is_about((await liveness.read(7)).seen_ms_ago[A], 10_000)


async def test_members_that_are_gone_are_forgotten(liveness: Liveness) -> None:
    await reported(liveness, {A: 0, B: 0})
    await reported(liveness, {}, A)

    assert set((await liveness.read(7)).seen_ms_ago) == {B}


async def test_members_are_asked_for_across_shards_in_their_order(liveness: Liveness) -> None:
    await reported(liveness, {A: 10_000}, shard_id=1)
    await reported(liveness, {B: 30_000}, shard_id=2)

    first, second, third, fourth = await liveness.seen_ms_ago([(2, B), (1, C), (1, A), (2, A)])

    assert is_about(first, 30_000)
    assert is_about(third, 10_000)
    assert (second, fourth) == (None, None)


async def test_who_is_not_the_owner_records_known_members_only(liveness: Liveness) -> None:
    await reported(liveness, {A: 60_000})

    assert await liveness.record(7, [B, A]) == [False, True]

    known = await liveness.read(7)
    assert set(known.seen_ms_ago) == {A}
    assert is_about(known.seen_ms_ago[A], 0)


async def test_recording_does_not_pass_for_an_owners_news(liveness: Liveness) -> None:
    assert await liveness.record(7, [A]) == [False]

    assert (await liveness.read(7)).published_ms_ago is None


async def test_news_of_more_members_than_fit_into_one_step(liveness: Liveness) -> None:
    members: list[MemberName] = [("default", "big", f"m{n}") for n in range(2_500)]
    await reported(liveness, dict.fromkeys(members, 0))
    await reported(liveness, dict.fromkeys(members[:1_200], 0), *members[1_200:])

    known = await liveness.read(7)

    assert set(known.seen_ms_ago) == set(members[:1_200])
    answers = await liveness.seen_ms_ago([(7, member) for member in members])
    assert [answer is not None for answer in answers] == [True] * 1_200 + [False] * 1_300
    assert sum(await liveness.record(7, members)) == 1_200
