"""Counts how plain our English is: words that a reader has to parse instead of skim, names, and lengths."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.sources import ROOT, parse

MARKS: Mapping[str, re.Pattern[str]] = {
    "who": re.compile(r"\b(who|whoever|whom|whose)\b", re.IGNORECASE),
    "body": re.compile(r"\b(no|some|any|every)body\b", re.IGNORECASE),
    "what is": re.compile(r"\bwhat (is|was|it)\b", re.IGNORECASE),
}
"""A relative clause or a pronoun instead of an actor, and a clause instead of a noun."""

VERBS = {
    *("tell", "tells", "told", "hear", "hears", "heard", "heed", "heeds", "mend", "mended", "deal", "deals", "dealt"),
    *("ring", "rings", "rang", "rung", "bury", "buried"),
}
"""Verbs for which Kafka, gRPC, Kubernetes and Python have another: notify, receive, fix, assign, fire, remove."""

_WORD = re.compile(r"[A-Za-z']+")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_COMMENT = re.compile(r"(?m)(?:^ *|  )(# .*)$")
"""As ruff formats it. Tokenizing all modules would take most of the tests' time."""
_GENERATED = ("service/rota/v1", "docs/reference", "docs/benchmarks.md")
_MESSAGE_MIN_WORDS = 3
"""Shorter strings are names, keys and labels."""


@dataclass(frozen=True, slots=True)
class Prose:
    """The text of a package that people read."""

    words: int
    found: Mapping[str, int]

    def per_thousand(self, mark: str) -> float:
        return round(1000 * self.found[mark] / max(1, self.words), 1)

    def exceeds(self, mark: str, ceiling: float) -> bool:
        """Whether there are more than the ceiling allows; one alone never is."""
        return self.found[mark] > max(1.0, ceiling * self.words / 1000)


def measured(text: str) -> Prose:
    """How many words the text has, and how many of each mark."""
    return Prose(len(_WORD.findall(text)), {mark: len(pattern.findall(text)) for mark, pattern in MARKS.items()})


_tree = cache(parse)


@cache
def packages() -> Mapping[str, Prose]:
    """All prose of ours by package: comments, docstrings, messages, pages, alerts and templates."""
    texts: dict[str, list[str]] = {}
    for path in _ours():
        texts.setdefault(_package(path), []).append(_prose(path))
    return {package: measured("\n".join(parts)) for package, parts in sorted(texts.items())}


def identifiers(text: str) -> Iterator[str]:
    """The names that a module gives: functions, classes, parameters, attributes and variables."""
    for node in ast.walk(_tree(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def banned_verbs(names: Iterable[str]) -> set[str]:
    """Those of the names that have a banned verb as a part."""
    return {name for name in names if VERBS & {part.lower() for part in _PART.findall(name)}}


def prose_of_python(text: str, *, messages: bool) -> str:
    """Comments and docstrings of a module, those of attributes included, and its messages where asked for."""
    parts = _COMMENT.findall(text)
    nodes = list(ast.walk(_tree(text)))
    for node in nodes if messages else [node.value for node in nodes if isinstance(node, ast.Expr)]:
        match node:
            case ast.Constant(value=str(string)) if not messages or len(string.split()) >= _MESSAGE_MIN_WORDS:
                parts.append(string)
    return "\n".join(parts)


def modules(folder: str) -> Iterator[tuple[Path, str]]:
    """The modules below a folder, the generated ones left out."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not path.relative_to(ROOT).as_posix().startswith(_GENERATED):
            yield path, path.read_text(encoding="utf-8")


def _ours() -> Iterator[Path]:
    folders = {
        "service/rota": ("*.py", "*.html"),
        "tests": ("*.py",),
        "bench": ("*.py",),
        "migrations": ("*.py",),
        "examples": ("*.py", "*.md"),
        "docs": ("*.md",),
        "deploy": ("*.py", "*.md", "*.yaml", "*.env"),
        "helm": ("*.md", "*.yaml"),
        "proto": ("*.proto",),
    }
    for folder, kinds in folders.items():
        for kind in kinds:
            yield from sorted((ROOT / folder).rglob(kind))
    yield from sorted(ROOT.glob("*.md"))


def _package(path: Path) -> str:
    """`rota/client`, `docs/how-to`, `tests`, `README.md`; generated texts count for the code that they are made of."""
    parts = path.relative_to(ROOT).parts
    if parts[:2] == ("service", "rota"):
        return f"rota/{parts[2]}"
    return "/".join(parts[:2]) if parts[0] == "docs" else parts[0]


def _prose(path: Path) -> str:
    place = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    if place.startswith(_GENERATED):
        return ""
    return prose_of_python(text, messages=not place.startswith("tests/")) if path.suffix == ".py" else text
