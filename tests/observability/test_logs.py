"""Log lines: one for each record, whatever texts of callers it holds."""

from __future__ import annotations

import json
import logging

import pytest

from rota.server.observability.logs import JsonFormatter, TextFormatter

SENT = "x\n12:00:00.000 error rota: made up \x1b[2J"
UNPRINTABLE = "".join(
    chr(each) for each in (*range(32), *range(127, 160), 0xAD, 0x200B, 0x2028, 0x202E, 0xFEFF, 0xE0041)
)


@pytest.mark.parametrize("field", ["msg", "reason"])
def test_what_somebody_sent_cannot_begin_a_line(field: str) -> None:
    record = logging.makeLogRecord({"msg": "group is Stable", "reason": "joined", field: SENT})

    text, document = TextFormatter().format(record), JsonFormatter().format(record)

    assert text.isprintable()
    assert r"x\n12:00:00.000 error rota: made up \x1b[2J" in text
    assert document.isprintable()
    assert SENT in json.loads(document).values()


def test_an_error_with_a_callers_text_cannot_begin_a_line() -> None:
    try:
        raise ValueError(SENT)
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": (type(error), error, error.__traceback__)})

    first, *rest = TextFormatter().format(record).splitlines()

    assert first.endswith("failed")
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_a_document_has_escapes_and_the_same_meaning() -> None:
    record = logging.makeLogRecord({"msg": "group is Stable", "reason": f'{UNPRINTABLE}"\\'})

    document = JsonFormatter().format(record)

    assert json.loads(document)["reason"] == f'{UNPRINTABLE}"\\'
    assert document.isprintable()
