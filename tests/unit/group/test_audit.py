"""Administrators' acts: each that changes something is followed by a line that names the administrator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.core.group.records import Administered
from rota.protocol import messages as m
from tests.unit.group.driver import KEY, NAMESPACE, Core, a_stable_group, an_empty_group, an_empty_shard

ACT = m.Act("alice", "ticket 7", "10.0.0.7")
SILENT = m.Act("alice", origin="10.0.0.7")


@pytest.mark.parametrize(
    ("core", "request_", "line", "generation_id"),
    [
        pytest.param(
            an_empty_shard,
            m.PutTopic(NAMESPACE, "t", 3, {}, ACT),
            Administered("PutTopic", "alice", "t", "ticket 7", "10.0.0.7"),
            0,
            id="a topic",
        ),
        pytest.param(
            a_stable_group,
            m.LeaveGroup(*KEY, (m.LeavingMember("m1", None, "stuck"),), True, SILENT),
            Administered("LeaveGroup", "alice", "m1", "stuck", "10.0.0.7"),
            1,
            id="a member, with the reason of the request",
        ),
        pytest.param(
            a_stable_group,
            m.LeaveGroup(*KEY, (m.LeavingMember("m1"), m.LeavingMember("m0", None, "stuck")), True, SILENT),
            Administered("LeaveGroup", "alice", "m1, m0", "stuck", "10.0.0.7"),
            2,
            id="several members",
        ),
        pytest.param(
            a_stable_group,
            m.LeaveGroup(*KEY, (m.LeavingMember("m1"), m.LeavingMember()), True, SILENT),
            Administered("LeaveGroup", "alice", "m1, ", "", "10.0.0.7"),
            1,
            id="a member, and one without a name",
        ),
        pytest.param(
            lambda: a_stable_group(static=1),
            m.LeaveGroup(*KEY, (m.LeavingMember("", "i0"),), True, SILENT),
            Administered("LeaveGroup", "alice", "i0", "", "10.0.0.7"),
            1,
            id="a static member, without a reason",
        ),
        pytest.param(
            an_empty_group,
            m.DeleteGroup(*KEY, "not needed", SILENT),
            Administered("DeleteGroup", "alice", "", "not needed", "10.0.0.7"),
            2,
            id="a group, with its last generation",
        ),
        pytest.param(
            a_stable_group,
            m.RebalanceGroup(*KEY, "uneven", act=ACT),
            Administered("RebalanceGroup", "alice", "", "ticket 7", "10.0.0.7"),
            1,
            id="a rebalance, with the administrator's note",
        ),
        pytest.param(
            an_empty_group,
            m.CommitOffsets(*KEY, -1, (m.OffsetToCommit("t", 0, 5),), act=SILENT),
            Administered("CommitOffsets", "alice", "", "", "10.0.0.7"),
            2,
            id="progress",
        ),
        pytest.param(
            an_empty_group,
            m.DeleteOffsets(*KEY, (m.TopicPartitions("t", (0,)),), SILENT),
            Administered("DeleteOffsets", "alice", "", "", "10.0.0.7"),
            2,
            id="deleted progress",
        ),
    ],
)
def test_the_line_of_an_act_follows_those_of_its_changes(
    core: Callable[[], Core], request_: m.Request, line: Administered, generation_id: int
) -> None:
    made = core()
    made.ask(request_)
    last = made.journal[-1]

    assert len(made.journal) > 1
    group_id = request_.group_id if isinstance(request_, m.GroupRequest) else ""
    assert last == (NAMESPACE, group_id, generation_id, made.now_ms, line)


def test_an_act_that_changes_nothing_is_not_written() -> None:
    core = an_empty_shard()
    core.ask(m.DeleteTopic(NAMESPACE, "t", ACT))
    core.ask(m.DeleteGroup(*KEY, act=ACT))

    assert core.journal == []


def test_a_change_without_an_authenticated_actor_is_no_act() -> None:
    core = a_stable_group()
    core.ask(m.RebalanceGroup(*KEY))

    assert "administered" not in core.kinds()


def test_deleted_progress_says_that_it_was_requested() -> None:
    core = an_empty_group()
    core.ask(m.DeleteOffsets(*KEY, (m.TopicPartitions("t", (0,)),)))
    assert core.last("offsets_deleted").reason == "request"

    core.ask(m.DeleteGroup(*KEY, "not needed"))

    assert core.last("group_deleted").reason == "deleted on request: not needed"


def test_a_group_is_deleted_with_its_progress_and_a_reason() -> None:
    core = an_empty_group()
    core.ask(m.DeleteGroup(*KEY))

    assert core.kinds()[-2:] == ["offsets_deleted", "group_deleted"]
    assert (core.last("offsets_deleted").reason, core.last("group_deleted").reason) == ("request", "deleted on request")
