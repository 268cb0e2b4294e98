"""Commits with a negative generation: the core, the guard and the quotas agree on which ones take an administrator."""

from __future__ import annotations

from itertools import product

import pytest

from rota.core.access.binding import check_binding
from rota.core.access.quotas import Meter, Quota, Stored
from rota.core.access.rules import Pod, is_administrative
from rota.protocol import messages as m
from rota.protocol.calls import Action, need_of
from rota.protocol.errors import ErrorCode
from tests.access.guarded import NAMESPACE, Secrets, a_guarded_service, bearer
from tests.unit.group.driver import Core, a_stable_group, an_empty_group, an_empty_shard

A_MEMBER_ID = "worker-0-01234567-89ab-cdef-0123-456789abcdef"
NAMES = tuple(product(("", "x", "m0", A_MEMBER_ID), (None, "", "i")))
GENERATIONS = (-(2**31), -2, -1, 0, 1, 2**31 - 1)
COMMITS = [
    m.CommitOffsets("default", "g", generation_id, (m.OffsetToCommit("t", 0, 1),), member_id, instance_id)
    for (member_id, instance_id), generation_id in product(NAMES, GENERATIONS)
]


def lands(core: Core, commit: m.CommitOffsets) -> bool:
    return bool(core.ask(commit).error is ErrorCode.NONE)


def makes_a_group(commit: m.CommitOffsets) -> bool:
    """Whether the quota counts the commit's group as a new one."""
    meter = Meter(Quota(max_groups=1), 0, "namespace", "default")
    meter.look("default", Stored({"another"}))
    return meter.refusal_of("c", 0, commit) == "max_groups"


@pytest.mark.parametrize("commit", COMMITS, ids=lambda c: f"{c.member_id}/{c.group_instance_id}/{c.generation_id}")
def test_core_guard_and_quota_agree_on_standalone_commits(commit: m.CommitOffsets) -> None:
    past_membership = lands(an_empty_shard(), commit)

    assert past_membership is lands(an_empty_group(), commit) is commit.is_standalone
    assert (need_of(commit).action is Action.ADMINISTER) is is_administrative(commit) is past_membership
    assert makes_a_group(commit) is past_membership


@pytest.mark.parametrize("commit", COMMITS, ids=lambda c: f"{c.member_id}/{c.group_instance_id}/{c.generation_id}")
def test_only_a_current_member_commits_without_an_administrator(commit: m.CommitOffsets) -> None:
    core = a_stable_group(members=1)
    own = (core.ids[0], None, core.group.generation_id)

    landed = lands(core, commit)

    assert not landed or (commit.member_id, commit.group_instance_id, commit.generation_id) == own


def test_a_pods_name_in_a_standalone_commit_is_no_permission() -> None:
    posing = m.CommitOffsets("default", "g", -1, (), A_MEMBER_ID)

    assert check_binding(posing, Pod("team-a", "worker-0")) == ""
    assert need_of(posing).action is Action.ADMINISTER


async def test_names_spare_no_commit_the_rules_nor_the_trail(tmp_path_factory: pytest.TempPathFactory) -> None:
    bodies: list[dict[str, object]] = [
        {"generation_id": -1, "offsets": [{"topic": "t", "partition": 0, "offset": 1}], **names}
        for names in ({"member_id": "x"}, {"group_instance_id": "i"}, {"member_id": A_MEMBER_ID})
    ]
    path = f"/v1/namespaces/{NAMESPACE}/groups/g/offsets"
    async with a_guarded_service(Secrets(tmp_path_factory.mktemp("secrets"))) as service:
        member, operator = service.secrets.a_token("member"), service.secrets.a_token("o", "operator")
        refused = [await service.http.post(path, json=body, headers=bearer(member)) for body in bodies]
        accepted = [await service.http.post(path, json=body, headers=bearer(operator)) for body in bodies]
        lines = [line for shard in range(2) for line in await service.coordinator.events(shard, 0, 100)]

    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(403, "GROUP_AUTHORIZATION_FAILED")}
    assert {answer.status_code for answer in accepted} == {200}
    assert [line.payload["actor"] for line in lines if line.kind == "administered"] == ["token:o"] * 3
