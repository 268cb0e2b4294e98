"""What a history says of itself: epochs that cannot all be true are found, also where no group by itself shows it."""

from __future__ import annotations

import json

import pytest

from rota.core.group.records import IN_USERS_TRANSACTION
from rota.pipeline.tables import Line
from tests.pipeline.journals import ordered, simulated
from tests.pipeline.replaying import findings_of


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_epoch_raised_on_a_groups_last_line_is_found(seed: int) -> None:
    journal = simulated(seed)
    last_of_groups = {(line.shard_id, line.namespace, line.group_id): line for line in ordered(journal)}.values()

    named = [line for line in last_of_groups if raised_is_named(line, journal)]

    goes_on = [line for line in last_of_groups if any(follows(other, line) for other in journal)]
    assert named == goes_on != []
    assert list(findings_of(ordered(journal))) == []


def test_a_users_transaction_is_of_a_member_or_a_former_one() -> None:
    journal = simulated(4)
    users = [line for line in journal if line.reason == IN_USERS_TRANSACTION]

    def checks_with(strange: Line, users_own: Line) -> set[str]:
        changed = [strange if line is users_own else line for line in journal]
        return {finding.check for finding in findings_of(ordered(changed))}

    def of_a_stranger(line: Line) -> Line:
        return line._replace(payload=json.dumps({**json.loads(line.payload), "member_id": "stranger"}))

    assert users != []
    assert list(findings_of(ordered(journal))) == []
    assert [checks_with(of_a_stranger(line), line) for line in users] == [{"S9"}] * len(users)


def raised_is_named(line: Line, journal: tuple[Line, ...]) -> bool:
    """Whether the audit names the line once it alone has a higher epoch."""
    raised = line._replace(epoch=line.epoch + 1)
    found = findings_of(ordered([raised if each is line else each for each in journal]))
    return ("epoch", line.shard_id, line.namespace, line.group_id, line.seq) in [finding[:5] for finding in found]


def follows(other: Line, line: Line) -> bool:
    """In the same shard, by the same owner."""
    return (other.shard_id, other.epoch) == (line.shard_id, line.epoch) and other.seq > line.seq
