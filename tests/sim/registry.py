"""Where planted bugs are registered, and how one is planted: it patches attributes while its context is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

Mutant = Callable[[], AbstractContextManager[None]]
MUTANTS: dict[str, Mutant] = {}


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


Patch = Callable[[Any, str, Any], None]
