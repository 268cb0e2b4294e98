"""Which sets are played: every file of a folder, distinguished by its content, and small ones of our own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDERS = (Path(os.environ.get("ROTA_CONFORMANCE_DIR", HERE / "data")), HERE / "own")


def documents(kind: str) -> Iterator[dict[str, Any]]:
    """The documents with rows of this kind: `scenarios` of the classic protocol, or `cases` of assignors."""
    for folder in FOLDERS:
        found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
        unknown = [sorted(each) for each in found if not each.keys() & {"scenarios", "cases"}]
        assert found, f"{folder} has no set: nothing would be tested"
        assert not unknown, f"{folder} has files with neither scenarios nor cases: {unknown}"
        yield from (each for each in found if kind in each)
