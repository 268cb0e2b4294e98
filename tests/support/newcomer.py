"""A newcomer's environment: of all that the tests' environment holds, Python finds what rota and some extras bring.

So a page that needs an extra fails here, as it would for a reader, unless it has had that extra installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_HIDE = """
import sys

class _Hidden:
    names = frozenset({names})

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in cls.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, _Hidden)
"""


class Newcomer:
    """Processes that have `environment` see what is installed; `install` adds extras, for those that start then."""

    def __init__(self, folder: Path, extras: Iterable[str] = ()) -> None:
        self._folder = folder
        self._extras: set[str] = set()
        self.distributions: set[str] = set()
        folder.mkdir()
        self.environment = {"PYTHONPATH": str(folder)}
        self.install(extras)

    def install(self, extras: Iterable[str]) -> None:
        self._extras |= set(extras)
        self.distributions = _brought_by("rota", self._extras)
        hidden = sorted(modules_of() - modules_of(self.distributions))
        (self._folder / "sitecustomize.py").write_text(_HIDE.format(names=hidden))


def modules_of(of: set[str] | None = None) -> set[str]:
    """The top-level modules of these distributions, or of all; a module that several share belongs to each of them."""
    return {
        module
        for module, distributions in _distributions_of_modules().items()
        if of is None or of & {canonicalize_name(name) for name in distributions}
    }


@cache
def _distributions_of_modules() -> Mapping[str, list[str]]:
    """Reading the metadata of all packages takes half a second."""
    return packages_distributions()


def _brought_by(name: str, extras: Iterable[str]) -> set[str]:
    """The distributions that are installed with one, itself included."""
    found, to_do = set[tuple[str, str]](), [(name, "")] + [(name, extra) for extra in extras]
    while to_do:
        name, extra = to_do.pop()
        if (canonicalize_name(name), extra) in found:
            continue
        found.add((canonicalize_name(name), extra))
        for requirement in map(Requirement, requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                to_do += [(requirement.name, "")] + [(requirement.name, more) for more in requirement.extras]
    return {distribution for distribution, _ in found}
