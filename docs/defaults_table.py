"""The default times of `rota.protocol.defaults`, with the texts below them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple


class Default(NamedTuple):
    name: str
    value_ms: int
    used_by: str
    reason: str


def defaults_table() -> Iterator[Default]:
    """Every default that has both texts, in the order of the module."""
    from rota.protocol import defaults

    for statement, text in pairwise(ast.parse(inspect.getsource(defaults)).body):
        match statement, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                used_by, _, reason = (" ".join(part.split()) for part in said.partition("\n\n"))
                yield Default(name, getattr(defaults, name), used_by, reason)
