"""`rota hold`: a command runs while it has a permit; what it shares with `rota lead` is tested there."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.exec.wrappers import PRINT_ENVIRONMENT, SHORT_SESSION_MS, STUBBORN, Wrappers, pid_of, wait_until_dead
from tests.support.processes import Process

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

HOLDS = f"{PRINT_ENVIRONMENT}; import time; time.sleep(600)"


def holder(wrappers: Wrappers, script: str = HOLDS, permits: int = 1) -> Process:
    return wrappers.hold(sys.executable, "-c", script, options=("--permits", str(permits)))


def permit_of(process: Process) -> tuple[int, int]:
    """The number and the token that the command received."""
    reported = json.loads(process.wait_for_line(r"^\{.*\}$")[0])
    return int(reported["ROTA_PERMIT"]), int(reported["ROTA_FENCING_TOKEN"])


def test_two_commands_hold_permits_and_a_third_gets_the_next(wrappers: Wrappers) -> None:
    first = holder(wrappers, permits=2)
    number, token = permit_of(first)
    second = holder(wrappers, permits=2)
    permit_of(second)
    third = holder(wrappers, permits=2)
    impatient = wrappers.hold("true", options=("--permits", "2", "--wait", "1"))
    assert impatient.wait_for_exit() == 75
    assert "all permits are held" in impatient.output()

    first.send(signal.SIGTERM)

    passed_on = permit_of(third)
    assert (number, passed_on[0], passed_on[1] > token) == (0, 0, True)
    assert first.wait_for_exit() == 128 + signal.SIGTERM
    assert second.running


def test_a_command_is_dead_before_the_next_when_its_wrapper_dies(wrappers: Wrappers) -> None:
    short = wrappers.soon_lost()
    killed = short.hold(sys.executable, "-c", STUBBORN)
    child = pid_of("child", killed)
    other = holder(short)

    killed.send(signal.SIGKILL)

    wait_until_dead(child, deadline_s=10 * SHORT_SESSION_MS / 1000)
    assert permit_of(other)[0] == 0
