"""`rota topics watch` follows a topic to its end."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Rota
from tests.support.processes import Processes

pytestmark = pytest.mark.processes


def test_a_topic_is_shown_at_each_change_until_it_is_deleted(rota: Rota, processes: Processes) -> None:
    rota("topics", "put", "words", "--partitions", "2")
    at = ("--url", rota.url, "--namespace", rota.namespace)
    watching = processes.rota("topics", "watch", "words", *at, "--output", "json")
    watching.wait_for_line('"partitions": 2')

    rota("topics", "put", "words", "--partitions", "3", "-a", "weight=2")
    watching.wait_for_line('"partitions": 3')
    rota("topics", "delete", "words")

    assert watching.wait_for_exit() == 0
    shown = watching.output()
    assert '"weight": "2"' in shown
    assert "topic words is deleted" in shown
