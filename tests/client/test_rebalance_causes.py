"""Every reason that the SDK gives for a rebalance has a cause of its own, and causes are a fixed set of words."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from rota.client.metrics import CAUSES, RebalanceCauses, cause_of_reason
from rota.core.membership import events as core
from rota.protocol.errors import ErrorCode
from tests.support.sources import sources

ASSIGNED = core.Assigned(1, "range", "leader", False, b"share")


def test_every_reason_of_the_sdk_is_known() -> None:
    """A reason that is not would count as the program's own."""
    reasons = [*reasons_in("client", "rejoin"), *reasons_in("core/membership", "leave_generation")]

    assert len(reasons) >= 10
    assert [reason for reason in reasons if cause_of_reason(reason) == "requested"] == []
    assert {cause_of_reason(reason) for reason in reasons} <= set(CAUSES)


@pytest.mark.parametrize(
    "reason", ["", "new plan", "the topics changed by hand", "a token of its own, please\n", "5 partitions"]
)
def test_any_other_reason_is_the_programs(reason: str) -> None:
    assert cause_of_reason(reason) == "requested"


@pytest.mark.parametrize("code", ErrorCode)
def test_a_loss_by_any_code_has_a_cause_of_the_table(code: ErrorCode) -> None:
    cause = RebalanceCauses().cause_of(core.Lost(1, "whatever", code))

    assert cause in CAUSES
    assert str(cause).startswith("lost_")


def test_a_first_assignment_is_no_resync_and_a_later_one_is() -> None:
    causes = RebalanceCauses()

    assert [causes.cause_of(ASSIGNED) for _ in range(3)] == [None, "resync", "resync"]


def reasons_in(package: str, method: str) -> Iterator[str]:
    """The texts that calls of this name are given as their reason, with 7 for each value in them."""
    for source in sources():
        for node in ast.walk(source.tree) if source.name.startswith(f"{package}/") else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
                yield from filter(None, (_text(part) for argument in node.args for part in _alternatives(argument)))


def _alternatives(argument: ast.expr) -> list[ast.expr]:
    return argument.values if isinstance(argument, ast.BoolOp) else [argument]


def _text(argument: ast.expr) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in argument.values)
    return ""
