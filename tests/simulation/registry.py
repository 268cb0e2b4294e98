"""Where planted bugs are registered, and how one is planted: it patches attributes while its context is open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

Mutant = Callable[[], AbstractContextManager[None]]
MUTANTS: dict[str, Mutant] = {}
_DOCUMENTED = re.compile(r"(?P<rules>(?:[A-Z]\d+[a-z]?|crash)(?:, [A-Z]\d+[a-z]?)*)(?: \([^)]*\))?: (?P<defect>.+\.)")


@dataclass(frozen=True, slots=True)
class About:
    """The docstring of a planted bug: the rules that it breaks, and the defect."""

    rules: str
    defect: str


ABOUT: dict[str, About] = {}


def mutant(plant: Callable[[Callable[[Any, str, Any], None]], None]) -> None:
    """Register `plant`, which gets a function that patches an attribute until the mutant is closed."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:

            def patch(target: Any, name: str, replacement: Any) -> None:
                former = getattr(target, name)
                own = name in vars(target)
                setattr(target, name, replacement)
                stack.callback(setattr, target, name, former) if own else stack.callback(delattr, target, name)

            plant(patch)
            yield

    MUTANTS[plant.__name__] = planted
    documented = _DOCUMENTED.fullmatch(" ".join((plant.__doc__ or "").split()))
    assert documented is not None, f"the docstring of {plant.__name__} is not `RULE: the defect.`"
    ABOUT[plant.__name__] = About(documented["rules"], documented["defect"])


Patch = Callable[[Any, str, Any], None]
