"""Documents are written as `json.dumps` writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rota.wire.documents import json_writer

SEPARATORS = {True: (",", ":"), False: (", ", ": ")}
VALUES: list[Any] = [
    {},
    [],
    "",
    'quotes " and \\ and / and \n \t \x00 \x7f ü \u2028 \U0001f600',
    {"ü": [1, -2, 2**63, 1.5, True, False, None, {"a": {"b": [[], {}]}}]},
    {1: "a key that is a number"},
    [("a", "tuple")],
]


@pytest.mark.parametrize("compact", [True, False])
def test_a_text_is_that_of_json_dumps(compact: bool) -> None:
    write = json_writer(compact=compact)

    for value in VALUES:
        assert write(value) == json.dumps(value, separators=SEPARATORS[compact], ensure_ascii=False)


@pytest.mark.parametrize(("value", "error"), [(float("nan"), ValueError), (float("inf"), ValueError), (b"", TypeError)])
def test_a_value_that_json_does_not_have_is_an_error(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        json_writer(compact=True)({"a": [value]})
