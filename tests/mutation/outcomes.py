"""The outcomes of a room's mutants, as mutmut has written them down below the room's stage."""

from __future__ import annotations

import difflib
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.stage import Room

SURVIVED, TESTS, TYPES, UNCHECKED = "survived", "tests", "types", "unchecked"
_KILLED = {1, 3, 36, 24, -24, 152, 255}
"""By a failing test, an error of pytest, or because the tests did not end."""
_NUMBERED = re.compile(r"^(?P<function>.+)__mutmut_\d+$")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant: the function that it changes, the lines that go and come, and the check that found it."""

    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    found_by: str

    @property
    def is_of_text(self) -> bool:
        """Whether it only changes a text for people: a string with a blank in it."""
        before, after = _tokens(self.removed), _tokens(self.added)
        pairs = [(old, new) for old, new in zip(before, after, strict=False) if old != new]
        return len(before) == len(after) and bool(pairs) and all(_is_text(old) for old, _ in pairs)

    def __str__(self) -> str:
        return "\n".join(
            (self.function, *(f"- {line}" for line in self.removed), *(f"+ {line}" for line in self.added))
        )


def read_outcomes(room: Room) -> list[Mutant]:
    """All mutants of the room."""
    return [mutant for place in _places(room) for mutant in _of_file(place)]


def forget_survivors(room: Room) -> None:
    """Have those that no test found played again: a test may be new."""
    for place in _places(room):
        written = json.loads(place.read_text())
        codes = written["exit_code_by_key"]
        written["exit_code_by_key"] = {n: None if _found_by(code) == SURVIVED else code for n, code in codes.items()}
        place.write_text(json.dumps(written))


def tally(mutants: list[Mutant]) -> Counter[str]:
    """How many each check found; those of texts for people are counted apart."""
    return Counter("text" if mutant.is_of_text else mutant.found_by for mutant in mutants)


def _places(room: Room) -> list[Path]:
    return sorted((room.stage / "mutants" / "src" / "rota" / room.package).rglob("*.py.meta"))


def _of_file(place: Path) -> Iterator[Mutant]:
    codes: dict[str, int | None] = json.loads(place.read_text())["exit_code_by_key"]
    if not codes:
        return
    mutated = place.with_suffix("")
    lines = mutated.read_text().splitlines()
    spans = json.loads(Path(f"{mutated}.spans").read_text())["spans"]
    for name, code in codes.items():
        module, _, mangled = name.rpartition(".")
        numbered = _NUMBERED.match(mangled)
        assert numbered is not None, f"mutmut names a mutant {name}"
        function = _plain(numbered["function"])
        before = _function(lines, spans[f"{numbered['function']}__mutmut_orig"], function)
        removed, added = _changed(before, _function(lines, spans[mangled], function))
        yield Mutant(f"{module}.{function}", removed, added, _found_by(code))


def _found_by(code: int | None) -> str:
    if code is None:
        return UNCHECKED
    if code == 37:
        return TYPES
    return TESTS if code in _KILLED else SURVIVED


def _plain(mangled: str) -> str:
    """`Backoff.next_ms` from `xǁBackoffǁnext_ms`, and `take_answer` from `x_take_answer`."""
    return mangled.removeprefix("xǁ").replace("ǁ", ".") if mangled.startswith("xǁ") else mangled.removeprefix("x_")


def _function(lines: list[str], span: list[int], function: str) -> list[str]:
    """The lines of a mutant, under the name that the function has in the sources."""
    (first, last), name = span, function.rpartition(".")[2]
    return [re.sub(r"\w+__mutmut_\w+", name, line).strip() for line in lines[first - 1 : last] if line.strip()]


def _changed(before: list[str], after: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    delta = list(difflib.ndiff(before, after))
    return tuple(d[2:] for d in delta if d[:2] == "- "), tuple(d[2:] for d in delta if d[:2] == "+ ")


def _tokens(lines: tuple[str, ...]) -> list[str]:
    try:
        return [token.string for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)]
    except (tokenize.TokenError, IndentationError):
        return ["\n".join(lines)]


def _is_text(token: str) -> bool:
    return token.lstrip("rbf")[:1] in ("'", '"') and " " in token
