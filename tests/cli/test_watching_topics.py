"""What `rota topics watch` and `rota groups watch` say before there is anything, and to the end."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Rota
from tests.support.processes import Processes

pytestmark = pytest.mark.processes


@pytest.mark.thorough
def test_a_topic_is_shown_at_each_change_until_it_is_deleted(rota: Rota, processes: Processes) -> None:
    rota("topics", "put", "words", "--partitions", "2")
    at = ("--url", rota.url, "--namespace", rota.namespace)
    watching = processes.rota("topics", "watch", "words", *at, "--output", "json")
    watching.wait_for_line('"partitions": 2')

    rota("topics", "put", "words", "--partitions", "3", "-a", "weight=2")
    watching.wait_for_line('"partitions": 3')
    rota("topics", "delete", "--yes", "words")

    assert watching.wait_for_exit() == 0
    shown = watching.output()
    assert '"weight": "2"' in shown
    assert "topic words is deleted" in shown


@pytest.mark.thorough
def test_a_group_that_is_not_there_is_named_and_waited_for(rota: Rota, processes: Processes) -> None:
    at = ("--url", rota.url, "--namespace", rota.namespace)
    watching = processes.rota("groups", "watch", "indexrs", *at, "-n", "1")
    watching.wait_for_line(f"^there is no group indexrs in namespace {rota.namespace}; its events are shown once")

    rota.member("indexrs")

    assert watching.wait_for_exit() == 0
    assert '"kind":"member_joined"' in watching.output().replace(" ", "")


def test_of_a_group_that_is_there_only_events_are_printed(rota: Rota) -> None:
    rota.member("indexers")

    assert rota("groups", "watch", "indexers", "--after", "0", "-n", "1").err == ""
