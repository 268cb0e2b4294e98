"""The site that Sphinx makes of these pages; `make docs` builds it strictly, into build/site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = "Rota"
author = "the authors of Rota"
html_title = "Rota"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"

# What only other pages link to is in no list: decisions and runbooks have tables of their own.
suppress_warnings = ["misc.highlighting_failure", "toc.not_included"]

# Headings down to the third level can be linked to, by the names that GitHub gives them.
myst_heading_anchors = 3

html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
# Nothing of the machine that built it, and nothing from elsewhere.
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": True}

DOCS = Path(__file__).parent
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _name_what_is_outside)


def _name_what_is_outside(_app: Any, page: str, source: list[str]) -> None:
    """The site is of docs/ alone: a link to another file of the repository becomes its name. It has to be there."""

    def named(link: re.Match[str]) -> str:
        target = ((DOCS / page).parent / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"docs/{page}.md links to {link[2]}, which is not there")
        name = f"`{target.relative_to(DOCS.parent)}`"
        return name if link[1].strip("/") in name else f"{link[1]} ({name})"

    source[0] = _LINK.sub(named, source[0])
