"""What a history says of itself: epochs that cannot all be true are found, also where no group by itself shows it."""

from __future__ import annotations

import pytest

from rota.pipeline.events import Line
from rota.pipeline.invariants import findings_of
from tests.pipeline.journals import ordered, simulated


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_epoch_that_is_raised_on_a_groups_last_line_is_found_where_the_shard_goes_on_with_its_own(seed: int) -> None:
    journal = simulated(seed)
    last_of_groups = {(line.shard_id, line.namespace, line.group_id): line for line in ordered(journal)}.values()

    named = [line for line in last_of_groups if raised_is_named(line, journal)]

    goes_on = [line for line in last_of_groups if any(follows(other, line) for other in journal)]
    assert named == goes_on != []
    assert list(findings_of(ordered(journal))) == []


def raised_is_named(line: Line, journal: tuple[Line, ...]) -> bool:
    """Whether the audit names the line once it alone has a higher epoch."""
    raised = line._replace(epoch=line.epoch + 1)
    found = findings_of(ordered([raised if each is line else each for each in journal]))
    return ("epoch", line.shard_id, line.namespace, line.group_id, line.seq) in [finding[:5] for finding in found]


def follows(other: Line, line: Line) -> bool:
    """In the same shard, by the same owner."""
    return (other.shard_id, other.epoch) == (line.shard_id, line.epoch) and other.seq > line.seq
