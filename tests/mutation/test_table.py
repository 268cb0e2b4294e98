"""The table of planted bugs says of each what finds it."""

from __future__ import annotations

from tests.mutation.table import client_rows, server_rows, whole_table


def test_each_planted_bug_is_found_by_a_seed_or_a_test() -> None:
    rows, table = [*server_rows(), *client_rows()], whole_table()

    assert [row[0] for row in rows if not row[-1]] == []
    assert all(row[0] in table for row in rows)
