"""Prints the part of CHANGELOG.md for a tag; fails where it is missing, or another version would be built.

python requirements/release_notes.py v0.2.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("Added", "Changed", "Fixed", "Security", "Removed")


def notes(version: str, changelog: str) -> str:
    """The text below the version's heading; raises ValueError where there is none, or a part has another name."""
    found = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None or not found[1].strip():
        raise ValueError(f"CHANGELOG.md has no part '## [{version}] - YYYY-MM-DD' with text")
    wrong = [part for part in re.findall(r"^### (.+)$", found[1], re.M) if part not in PARTS]
    if wrong:
        raise ValueError(f"CHANGELOG.md, {version}: parts are {', '.join(PARTS)}, not {', '.join(wrong)}")
    return found[1].strip() + "\n"


def versions(root: Path) -> dict[str, str]:
    """The version in each place that has one."""
    charts = {f"helm/{name}/Chart.yaml": root / "helm" / name / "Chart.yaml" for name in ("rota", "rota-sidecar")}
    found = {"pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]}
    for name, path in charts.items():
        for key, version in re.findall(r'^(version|appVersion): "?([^"\n]+)"?$', path.read_text("utf-8"), re.M):
            found[f"{name} {key}"] = version
    for path in (
        *root.glob("helm/*/README.md"),
        root / "helm/rota/try-out-values.yaml",
        root / "docs/how-to/kubernetes.md",
    ):
        named = re.findall(r"\brota(?:-\w+)?(?::|, version: )(\d+\.\d+\.\d+)", path.read_text("utf-8"))
        found |= {f"{path.relative_to(root)}, place {place}": version for place, version in enumerate(named, 1)}
    return found


def main(tag: str) -> None:
    version = tag.removeprefix("v")
    if others := {where: found for where, found in versions(ROOT).items() if found != version}:
        raise SystemExit(f"{tag} is not the version of {others}")
    try:
        print(notes(version, (ROOT / "CHANGELOG.md").read_text("utf-8")), end="")
    except ValueError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(*sys.argv[1:])
