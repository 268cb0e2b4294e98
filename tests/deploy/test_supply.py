"""Shipped dependencies: locked with hashes, within the ranges of pyproject.toml, and listed with their licences."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.kubernetes import REPOSITORY

LOCKS = REPOSITORY / "requirements"
EXTRAS = {
    "server": ("server", "store", "cli", "fencing", "grpc", "otel", "patterns", "postgres", "redis"),
    "pipeline": ("pipeline", "executor", "store", "cli", "postgres"),
    "executor": ("executor", "store", "cli"),
    "release": ("release",),
}
IMAGE = {"python_version": "3.11", "python_full_version": "3.11.2", "platform_system": "Linux", "sys_platform": "linux"}
"""Debian 12's Python, which the image has."""
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


# Imported by its name, because a type checker need not have CycloneDX.
components: Any = importlib.import_module("requirements.components")


def wanted(name: str) -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for e in EXTRAS[name] for text in PROJECT["optional-dependencies"][e])]
    asked = [Requirement(text) for text in texts]
    return [each for each in asked if each.name != "rota" and (each.marker is None or each.marker.evaluate(IMAGE))]


def locked(name: str) -> dict[str, str]:
    return {each.name: each.version for each in components.read_lock(LOCKS / f"{name}.lock")}


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_holds_what_the_project_asks_for(name: str) -> None:
    versions = locked(name)

    outside = [str(each) for each in wanted(name) if versions[canonicalize_name(each.name)] not in each.specifier]
    assert outside == []


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_says_nothing_of_where_it_was_made(name: str) -> None:
    text = (LOCKS / f"{name}.lock").read_text()

    assert not re.search(r"://|(^|\s)/|--index|--find-links|--extra-index|file:", text)


def test_the_image_has_what_its_own_python_needs() -> None:
    """It is older than the Python that installs: redis imports `async_timeout` before 3.11.3."""
    assert "async-timeout" in locked("server")


@pytest.mark.parametrize(
    ("file", "lock"), [("Dockerfile", "server"), ("spark/Dockerfile", "pipeline"), ("spark/pack.sh", "executor")]
)
def test_what_is_shipped_is_installed_by_its_lock(file: str, lock: str) -> None:
    text = (REPOSITORY / "deploy" / file).read_text().replace("\\\n", " ")
    text = re.sub(r"^#.*", "", text, flags=re.MULTILINE)
    installs = [line for line in re.split(r"\n|&&", text) if re.search(r"pip(\[@\]}\")? install", line)]

    assert any(f"{lock}.lock" in line for line in installs)
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)


def test_the_list_of_licences_is_the_locks() -> None:
    rows = re.findall(
        r"^\| ([a-z0-9-]+) \| (\S+) \| (.+) \|$", (REPOSITORY / "THIRD-PARTY.md").read_text(), re.MULTILINE
    )

    rows = [row for row in rows if row[0] != "package" and row[0] != "---"]
    assert {name: version for name, version, _ in rows} == locked("server")
    assert all(licence.strip() for *_, licence in rows)


def test_the_sbom_names_every_package_with_licence_and_hash(tmp_path: Path) -> None:
    lock = components.read_lock(LOCKS / "server.lock")

    written = json.loads(components.sbom("rota", PROJECT["version"], lock, {each.name: "MIT" for each in lock}))

    assert (written["bomFormat"], written["specVersion"]) == ("CycloneDX", "1.6")
    assert written["metadata"]["component"]["version"] == PROJECT["version"]
    said = {part["name"]: part for part in written["components"]}
    assert said.keys() == locked("server").keys()
    for each in lock:
        part = said[each.name]
        hashes = {one["content"] for one in part["hashes"]} | {one["value"] for one in part.get("properties", ())}
        assert (part["version"], hashes) == (each.version, set(each.hashes))
        assert part["licenses"] == [{"license": {"name": "MIT"}}]
        assert part["purl"] == f"pkg:pypi/{each.name}@{each.version}"


@pytest.mark.parametrize("planted", ["asyncpg==0.32.0", "asyncpg>=0.32.0", "-e ."])
def test_a_lock_without_a_hash_is_refused(tmp_path: Path, planted: str) -> None:
    (tmp_path / "planted.lock").write_text(f"{planted}\n")

    with pytest.raises(ValueError, match=r"hash|no package"):
        components.read_lock(tmp_path / "planted.lock")
