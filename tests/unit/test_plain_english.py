"""Plain English, measured: words that a reader has to parse, names with banned verbs, and names that are too long."""

from __future__ import annotations

import pytest

from tests.support.english import (
    MARKS,
    banned_verbs,
    identifiers,
    measured,
    modules,
    packages,
    prose_of_python,
)

AIM = 1.0
"""Marks per 1,000 words. The codebases that we compare with have 0.0 to 0.8."""

NO_VERBS = {"KeyRing"}
"""Here the word is a noun."""


@pytest.mark.thorough
def test_no_package_exceeds_the_aim() -> None:
    above = {
        f"{package}: {mark}": f"{prose.per_thousand(mark)} per 1,000 words"
        for package, prose in packages().items()
        for mark in MARKS
        if prose.exceeds(mark, AIM)
    }

    assert above == {}


@pytest.mark.thorough
def test_no_name_has_a_banned_verb() -> None:
    texts = [text for folder in ("bench", "tests", "service/rota") for _, text in modules(folder)]

    assert set().union(*(banned_verbs(identifiers(text)) for text in texts)) - NO_VERBS == set()


@pytest.mark.parametrize(
    ("planted", "mark"),
    [
        ("Whoever joins is on the stream from then on.", "who"),
        ("The member whose session ends is removed.", "who"),
        ("Nobody of rota has been ready for a minute.", "body"),
        ("Somebody asks\nanybody.", "body"),
        ("Fold what was ingested since the last time.", "what is"),
        ("What is due to it.", "what is"),
    ],
)
def test_a_planted_mark_is_found(planted: str, mark: str) -> None:
    prose = measured(f"{planted} {planted}")

    assert [each for each in MARKS if prose.found[each]] == [mark]
    assert prose.exceeds(mark, AIM)


@pytest.mark.parametrize(
    "harmless", ["`rota auth whoami` prints it.", "The whole body.", "what members notice", "No body is read."]
)
def test_a_word_that_only_looks_alike_is_no_mark(harmless: str) -> None:
    assert not any(measured(harmless).found.values())


def test_one_mark_alone_exceeds_no_ceiling() -> None:
    assert not measured("Who calls.").exceeds("who", AIM)
    assert measured("Who calls. Who asks.").exceeds("who", AIM)
    assert not measured("word " * 1_998 + "who who").exceeds("who", AIM)


def test_comments_docstrings_and_messages_of_a_module_are_prose() -> None:
    text = '"""Docstring."""\nLIMIT = 1  # comment\n"""Attribute."""\nraise ValueError("a message here", "key")\n'

    assert prose_of_python(text, messages=True).split("\n")[:1] == ["# comment"]
    assert "a message here" in prose_of_python(text, messages=True)
    assert prose_of_python(text, messages=False).split("\n") == ["# comment", "Docstring.", "Attribute."]


@pytest.mark.parametrize(
    "planted", ["def tell_all(): pass", "class Heard: pass", "def f(told_ms): pass", "x.was_told = 1"]
)
def test_a_planted_name_with_a_banned_verb_is_found(planted: str) -> None:
    assert len(banned_verbs(identifiers(planted))) == 1


def test_a_name_that_only_contains_the_letters_is_allowed() -> None:
    assert banned_verbs(identifiers("def string_of(ideal, dealer, intelligent, bringUp): pass")) == set()
