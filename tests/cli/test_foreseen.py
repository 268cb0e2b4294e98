"""Failures that a command foresees, however deep the layer wraps them: one line, and a documented exit code."""

from __future__ import annotations

import pytest

from rota.cli.exits import CommandFailed, Exit, failure_of, foreseen
from rota.client import CoordinatorUnreachable
from rota.client.errors import error_for
from rota.protocol.errors import ErrorCode, RejectedRequest


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (error_for(ErrorCode.UNAUTHENTICATED, "who is it"), Exit.AUTH),
        (CoordinatorUnreachable("refused"), Exit.UNAVAILABLE),
        (RejectedRequest(ErrorCode.INVALID_REQUEST, "a name"), Exit.USAGE),
    ],
    ids=["refused by the rules", "unreachable", "a wrong name"],
)
def test_failed_members_in_task_groups_are_one_line_with_a_code(error: Exception, exit_code: Exit) -> None:
    wrapped = ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("and another", [error])])

    assert [failed and failed.exit_code for failed in map(failure_of, (error, wrapped))] == [exit_code] * 2


def test_ctrl_c_is_no_traceback() -> None:
    with pytest.raises(CommandFailed) as ended, foreseen():
        raise KeyboardInterrupt

    assert (ended.value.exit_code, str(ended.value)) == (Exit.INTERRUPTED, "")


def test_text_that_cannot_be_encoded_is_wrong_use() -> None:
    with (
        pytest.raises(CommandFailed, match=r"'\\udcff' is no text that can be sent or printed as utf-8") as ended,
        foreseen(),
    ):
        "no \udcff text".encode()

    assert ended.value.exit_code is Exit.USAGE
