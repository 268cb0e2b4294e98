"""Group commit without a store: the content of each transaction, and the effect of its outcome on each shard."""

from __future__ import annotations

from rota.core.replica.owned_shard import Append, GroupCommit, OwnedShard, ReadSideCommits
from rota.protocol.errors import ErrorCode
from tests.unit.replica.shards import AN_OFFSET, a_shard, at, commit, decide, reply_to


def a_shard_that_wants(commits: GroupCommit[str], shard_id: int = 0) -> OwnedShard:
    """It has decided call 1, and asked for an append."""
    owned = a_shard(shard_id)
    assert decide(owned, 1, AN_OFFSET).appends
    commits.want(owned)
    return owned


def next_append(commits: GroupCommit[str]) -> Append:
    do = commits.next()
    assert isinstance(do, Append)
    return do


def test_nothing_is_to_be_done_while_nothing_waits() -> None:
    commits = GroupCommit[str]()

    assert commits.is_idle
    assert commits.next() is None


def test_entries_of_all_shards_go_into_one_transaction() -> None:
    commits = GroupCommit[str]()
    one, two = a_shard_that_wants(commits), a_shard_that_wants(commits, 1)
    assert not commits.is_idle

    batches = next_append(commits).batches

    assert [(owned, batch.shard_id, len(batch.entries)) for owned, batch in batches.items()] == [
        (one, 0, 1),
        (two, 1, 1),
    ]


def test_a_shard_that_waits_already_asks_for_nothing() -> None:
    commits = GroupCommit[str]()
    owned = a_shard(0)
    decide(owned, 1, AN_OFFSET)

    asked = [commits.want(owned), commits.want(owned)]
    next_append(commits)
    decide(owned, 2, AN_OFFSET)

    assert [*asked, commits.want(owned)] == [True, False, True]


def test_one_transaction_at_a_time() -> None:
    commits = GroupCommit[str]()
    a_shard_that_wants(commits)
    next_append(commits)
    late = a_shard_that_wants(commits, 1)

    assert commits.next() is None
    assert not commits.is_idle
    commits.landed([], at(1))
    assert list(next_append(commits).batches) == [late]


def test_nothing_is_under_way_once_the_append_has_landed() -> None:
    commits = GroupCommit[str]()
    a_shard_that_wants(commits)
    next_append(commits)
    commits.landed([], at(1))

    assert commits.is_idle
    assert commits.next() is None


def test_a_durable_batch_releases_its_replies_and_loses_no_shard() -> None:
    commits = GroupCommit[str]()
    owned = a_shard_that_wants(commits)
    batch = next_append(commits).batches[owned]

    landed = commits.landed([], at(1))

    assert landed.lost == {}
    assert reply_to(landed.committed[owned], 1).error is ErrorCode.NONE
    assert owned.durable_seq == batch.last_seq


def test_only_the_shard_that_the_store_refuses_is_lost() -> None:
    commits = GroupCommit[str]()
    refused, taken = a_shard_that_wants(commits), a_shard_that_wants(commits, 1)
    next_append(commits)

    landed = commits.landed([refused.shard_id], at(1))

    assert landed.lost == {refused: "the shard belongs to another replica now, or the store went back"}
    assert (refused.was_refused, taken.was_refused) == (True, False)
    assert list(landed.committed) == [taken]
    assert not refused.is_durable


def test_an_append_of_unknown_outcome_loses_every_shard_in_it() -> None:
    commits = GroupCommit[str]()
    one, two = a_shard_that_wants(commits), a_shard_that_wants(commits, 1)
    next_append(commits)

    landed = commits.outcome_unknown("the connection broke")

    why = "a write has an unknown outcome: the connection broke"
    assert (landed.committed, landed.lost) == ({}, {one: why, two: why})
    assert not one.is_durable
    assert commits.is_idle


def test_an_outcome_without_an_append_is_about_no_shard() -> None:
    commits = GroupCommit[str]()

    assert (commits.landed([], at(1)).committed, commits.outcome_unknown("late").lost) == ({}, {})


def test_a_shard_without_entries_or_that_was_dropped_is_left_out() -> None:
    commits = GroupCommit[str]()
    dropped, written, wanting = (a_shard_that_wants(commits, shard_id) for shard_id in range(3))
    dropped.drop("lost")
    commit(written)

    assert list(next_append(commits).batches) == [wanting]


def test_shards_that_have_nothing_to_write_make_no_transaction() -> None:
    commits = GroupCommit[str]()
    commit(a_shard_that_wants(commits))

    assert commits.next() is None
    assert commits.is_idle


# --- side commits -----------------------------------------------------------------------------------------


def test_side_commits_are_read_at_once_without_an_append() -> None:
    commits = GroupCommit[str]()
    owned = a_shard()
    commits.ask(owned, "waiter")
    assert not commits.is_idle

    do = commits.next()

    assert isinstance(do, ReadSideCommits)
    assert list(do.shards) == [owned]
    assert not commits.is_idle
    assert commits.side_commits_read() == ["waiter"]
    assert commits.is_idle


def test_side_commits_are_read_after_decisions_are_durable() -> None:
    commits = GroupCommit[str]()
    owned = a_shard_that_wants(commits)
    commits.ask(owned, "waiter")
    assert isinstance(commits.next(), Append)
    assert commits.next() is None, "not while the append is under way"
    commits.landed([], at(1))

    assert isinstance(commits.next(), ReadSideCommits)


def test_a_question_during_an_append_waits_for_the_next_one() -> None:
    commits = GroupCommit[str]()
    owned = a_shard_that_wants(commits)
    commits.ask(owned, "early")
    next_append(commits)
    decide(owned, 2, AN_OFFSET)
    commits.want(owned)
    commits.ask(owned, "late")
    commits.landed([], at(1))
    assert isinstance(commits.next(), ReadSideCommits)
    assert commits.side_commits_read() == ["early"]

    next_append(commits)
    commits.landed([], at(2))

    assert isinstance(commits.next(), ReadSideCommits)
    assert commits.side_commits_read() == ["late"]


def test_side_commits_of_a_dropped_shard_are_not_read() -> None:
    commits = GroupCommit[str]()
    dropped, owned = a_shard(), a_shard(1)
    commits.ask(dropped, "one")
    commits.ask(owned, "two")
    dropped.drop("lost")

    do = commits.next()

    assert isinstance(do, ReadSideCommits)
    assert list(do.shards) == [owned]
    assert commits.side_commits_read() == ["one", "two"]


def test_at_the_end_every_waiter_returns() -> None:
    commits = GroupCommit[str]()
    owned = a_shard_that_wants(commits)
    commits.ask(owned, "early")
    next_append(commits)
    commits.ask(owned, "late")

    assert commits.end() == ["early", "late"]
    commits.landed([], at(1))
    assert commits.is_idle
