"""Where planted bugs are registered, and how one is planted: it patches attributes while its context is open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

Patch = Callable[[Any, str, Any], None]
"""`patch(target, name, replacement)` replaces an attribute until the plant is taken out."""
Patching = Callable[[Patch], None]
Planted = Callable[[], AbstractContextManager[None]]

MUTANTS: dict[str, Planted] = {}
_MISSING = object()
_DOCUMENTED = re.compile(r"(?P<rules>(?:[A-Z]\d+[a-z]?|crash)(?:, [A-Z]\d+[a-z]?)*)(?: \([^)]*\))?: (?P<defect>.+\.)")


@dataclass(frozen=True, slots=True)
class About:
    """The docstring of a planted bug: the rules that it breaks, and the defect."""

    rules: str
    defect: str


ABOUT: dict[str, About] = {}


def while_planted(patching: Patching) -> Planted:
    """A context manager that lets `patching` patch on entry, and restores all of it on exit."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:

            def patch(target: Any, name: str, replacement: Any) -> None:
                assert hasattr(target, name), f"{target!r} has no {name} any more: the defect would not be planted"
                stack.callback(_restore, target, name, vars(target).get(name, _MISSING))
                setattr(target, name, replacement)

            patching(patch)
            yield

    return planted


def _restore(target: Any, name: str, former: Any) -> None:
    if former is _MISSING:  # Inherited: the class itself had no such attribute.
        delattr(target, name)
    else:
        setattr(target, name, former)


def mutant(patching: Patching) -> None:
    """Register `patching`; its docstring is `RULE: the defect.`"""
    documented = _DOCUMENTED.fullmatch(" ".join((patching.__doc__ or "").split()))
    assert documented is not None, f"the docstring of {patching.__name__} is not `RULE: the defect.`"
    MUTANTS[patching.__name__] = while_planted(patching)
    ABOUT[patching.__name__] = About(documented["rules"], documented["defect"])
