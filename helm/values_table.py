"""Writes the table of the chart's values into its README, from the comments of values.yaml; `make docs` runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "rota"
BEGIN, END = "<!-- values: written by helm/values_table.py (make docs) -->", "<!-- values end -->"


def documented(text: str) -> Iterator[tuple[str, str]]:
    """Every key that has a comment with `--` right above it, with its path and what the comment says."""
    path: list[tuple[int, str]] = []
    said: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("# -- "):
            said = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# ") and said:
            said.append(stripped.removeprefix("# "))
        elif stripped and not stripped.startswith(("#", "-")):
            path = [(depth, key) for depth, key in path if depth < indent]
            path.append((indent, stripped.partition(":")[0]))
            if said:
                yield ".".join(key for _, key in path), " ".join(said)
            said = []


def leaves(values: dict[str, Any], documented_paths: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys that one sets: down to where the documentation stops."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        has_deeper = any(other.startswith(f"{path}.") for other in documented_paths)
        if isinstance(value, dict) and has_deeper:
            yield from leaves(value, documented_paths, f"{path}.")
        else:
            yield path, value


def table(text: str) -> str:
    """In Markdown; a key without documentation is a KeyError."""
    says = dict(documented(text))
    rows = (
        f"| `{path}` | {says[path]} | `{json.dumps(default)}` |"
        for path, default in leaves(yaml.safe_load(text), set(says))
    )
    return "\n".join(("| value | meaning | default |", "| --- | --- | --- |", *rows))


def page(readme: str, values: str) -> str:
    """The README with the table of these values in its place."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(values)}\n\n{END}{after}"


def main(arguments: list[str]) -> None:
    readme = CHART / "README.md"
    written = readme.read_text(encoding="utf-8")
    current = page(written, (CHART / "values.yaml").read_text(encoding="utf-8"))
    if arguments != ["--check"]:
        readme.write_text(current, encoding="utf-8")
    elif current != written:
        sys.exit("helm/rota/README.md is out of date, run `make docs`")


if __name__ == "__main__":
    main(sys.argv[1:])
