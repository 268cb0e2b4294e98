"""A rule for groups with a quarantine: units that felled their holders are left out, and no others."""

from __future__ import annotations

from rota.core.group.records import Entry
from tests.simulation.groups.books import Books
from tests.simulation.quarantine_account import QuarantineAccount


class QuarantineRule:
    """Follows what the coordinator records."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._accounts: dict[str, QuarantineAccount] = {}

    def note(self, entry: Entry) -> None:
        account = self._accounts.setdefault(entry.group_id, QuarantineAccount())
        for violation in account.note(entry.record):
            self._books.violation("quarantine", f"{entry.group_id}: {violation}")
