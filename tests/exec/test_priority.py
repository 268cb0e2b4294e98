"""`rota lead --priority`: the command of the former leader has ended before the better candidate's begins."""

from __future__ import annotations

import json
import sys

import pytest

from tests.exec.wrappers import Wrappers

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

ENDS_SLOWLY = """
import json, os, signal, sys, time
def end(*_):
    time.sleep(0.3)
    print(json.dumps({"ended": time.time(), "token": os.environ["ROTA_FENCING_TOKEN"]}), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("at work", flush=True)
time.sleep(600)
"""
SAYS_WHEN = """
import json, os, time
print(json.dumps({"began": time.time(), "token": os.environ["ROTA_FENCING_TOKEN"]}), flush=True)
"""


def test_a_better_candidate_takes_over_when_the_command_ends(wrappers: Wrappers) -> None:
    low = wrappers.lead(sys.executable, "-c", ENDS_SLOWLY, options=("--again", "--priority", "1"))
    low.wait_for_line("at work")

    high = wrappers.lead(
        sys.executable, "-c", SAYS_WHEN, options=("--priority", "9", "--preempt-after", "0.5", "--wait", "30")
    )

    began = json.loads(high.wait_for_line(r"^\{.*\}$")[0])
    ended = json.loads(low.wait_for_line(r"^\{.*\}$")[0])
    assert ended["ended"] <= began["began"]
    assert int(ended["token"]) < int(began["token"])
    assert high.wait_for_exit() == 0
    assert low.running
