"""Names the repository in the package's metadata: the project's URLs, and the README's links, which an index needs.

The repository is the one that the release is built in: `ROTA_REPOSITORY_URL`, or what GitHub's runners say. Elsewhere
the README stays as it is, and there are no URLs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\]\((?!https?://|mailto:|#)([^)\s]+)\)")


class RepositoryLinks(MetadataHookInterface):
    """Fills the fields that `pyproject.toml` lists as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        url, ref = repository()
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, url, ref) if url else text}
        metadata["urls"] = urls(url, ref) if url else {}


def repository() -> tuple[str, str]:
    """The repository's URL, empty where it is not known, and the tag or branch that is built."""
    server, name = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    url = os.environ.get("ROTA_REPOSITORY_URL") or (f"{server}/{name}" if server and name else "")
    return url.rstrip("/"), os.environ.get("GITHUB_REF_NAME") or "main"


def absolute(text: str, url: str, ref: str) -> str:
    """The text with each relative link at its place in the repository."""
    return _RELATIVE.sub(rf"]({url}/blob/{ref}/\1)", text)


def urls(url: str, ref: str) -> dict[str, str]:
    return {
        "Changelog": f"{url}/blob/{ref}/CHANGELOG.md",
        "Documentation": f"{url}/blob/{ref}/docs/index.md",
        "Issues": f"{url}/issues",
        "Security": f"{url}/blob/{ref}/SECURITY.md",
        "Source": url,
    }
