"""Is a journal's schema one that this release reads?"""

from __future__ import annotations

from rota.pipeline.failures import JournalRefused
from rota.pipeline.journal import Journal
from rota.storage.migrate import revisions


def check_schema(journal: Journal) -> str:
    """The schema's migration; `JournalRefused` if it is of a release that this one does not know."""
    version = journal.schema_version()
    known = revisions()
    if version not in known:
        raise JournalRefused(
            f"the store's schema {version} is of a later release (this one knows {known[-1]}): upgrade rota here, too"
        )
    return version
