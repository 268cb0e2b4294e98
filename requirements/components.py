"""Lists what a lock has installed: as an SBOM in CycloneDX's JSON, and as a table of licences.

python requirements/components.py requirements/server.lock FOLDER --sbom rota.cdx.json --licences THIRD-PARTY.md

FOLDER is where `pip install --require-hashes --target FOLDER --requirement LOCK` has put the packages: names, versions
and hashes are the lock's, licences are what the packages say of themselves.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: *; *([^\\]*[^\\ ]))? *\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(.+)")


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    marker: str = ""


def read_lock(path: Path) -> list[Locked]:
    """The packages of a lock; raises ValueError where one has no hash, or a line says anything else."""
    found: list[Locked] = []
    for line in path.read_text("utf-8").splitlines():
        if pinned := _PINNED.match(line):
            found.append(Locked(_normal(pinned[1]), pinned[2], (), pinned[3] or ""))
        elif hashed := _HASH.search(line):
            last = found.pop()
            found.append(Locked(last.name, last.version, (*last.hashes, hashed[1]), last.marker))
        else:
            raise ValueError(f"{path}: {line!r} is no package and no hash")
    if unhashed := [each.name for each in found if not each.hashes]:
        raise ValueError(f"{path}: no hash of {', '.join(unhashed)}")
    return found


def licences_in(folders: Sequence[str]) -> dict[str, str]:
    """The licence of each package that is installed there, by its name."""
    return {_normal(each.metadata["Name"]): licence_of(each) for each in distributions(path=list(folders))}


def licence_of(package: Distribution) -> str:
    """What the package says: its expression, or else its classifiers, or else the first line of its text."""
    said = package.metadata
    if expression := said.get("License-Expression"):
        return str(expression)
    classifiers = [found[1] for each in said.get_all("Classifier") or () if (found := _CLASSIFIER.match(each))]
    text = next((line.strip() for line in str(said.get("License") or "").splitlines() if line.strip()), "")
    return " OR ".join(classifiers) or text[:80]


def sbom(name: str, version: str, locked: Sequence[Locked], licences: dict[str, str]) -> str:
    """CycloneDX 1.6 as JSON. A hash of the lock is of one file of a release, so there are several."""
    bom = Bom()
    root = Component(name=name, version=version, type=ComponentType.APPLICATION, bom_ref=f"{name}=={version}")
    root.supplier = OrganizationalEntity(name="Rota")
    bom.metadata.component = root
    parts = [_component(each, licences[each.name]) for each in locked]
    bom.components.update(parts)
    bom.register_dependency(root, parts)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"


def table(locked: Sequence[Locked], licences: dict[str, str]) -> str:
    """Markdown."""
    rows = [f"| {each.name} | {each.version} | {licences[each.name]} |" for each in locked]
    return "\n".join([*_ABOVE, *rows]) + "\n"


def _component(each: Locked, licence: str) -> Component:
    first, *others = sorted(each.hashes)
    return Component(
        name=each.name,
        version=each.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{each.name}=={each.version}",
        purl=PackageURL("pypi", None, each.name, each.version),
        licenses=[DisjunctiveLicense(name=licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=first)],
        properties=[Property(name="rota:locked-sha256", value=other) for other in others],
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_ABOVE = (
    "# Third-party software",
    "",
    "What `requirements/server.lock` brings into the image, and under which licence, as the packages say.",
    "Their own texts are in the image, in `/opt/rota/*.dist-info`. Written by `make locks`.",
    "",
    "| package | version | licence |",
    "| --- | --- | --- |",
)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lock", type=Path)
    parser.add_argument("folder", help="where the lock is installed")
    parser.add_argument("--sbom", type=Path)
    parser.add_argument("--licences", type=Path)
    options = parser.parse_args(argv)
    locked, licences = read_lock(options.lock), licences_in([options.folder])
    if missing := [each.name for each in locked if not licences.get(each.name)]:
        parser.error(f"not installed in {options.folder}, or without a licence: {', '.join(missing)}")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    if options.sbom:
        options.sbom.write_text(sbom(project["name"], project["version"], locked, licences), "utf-8")
    if options.licences:
        options.licences.write_text(table(locked, licences), "utf-8")


if __name__ == "__main__":
    main()
