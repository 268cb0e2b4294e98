"""Losses among the errors of the program's code: also in exception groups, or as causes of other errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rota.client.errors import MembershipLost, RebalanceInProgress, Unavailable

_LOSSES = (MembershipLost, RebalanceInProgress, Unavailable)
_log = logging.getLogger(__name__)


def without_losses(error: BaseException) -> BaseException | None:
    """Return the part of an error of work that the loss of its share does not explain; None if it explains all.

    An error that a member meets at the end of its share is explained by the loss, and so is one that was raised while
    such an error was handled. An exception group is split. The same object is returned if no part is explained.
    """
    if not isinstance(error, BaseExceptionGroup):
        return None if _is_loss(error) else error
    losses, rest = error.split(_is_loss)
    return error if losses is None else rest


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all that its traceback shows: causes, contexts and the members of groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += getattr(each, "exceptions", ())
            waiting.append(each.__cause__ if each.__suppress_context__ else each.__context__)


def _is_loss(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_loss, error.exceptions))
    return any(isinstance(each, _LOSSES) for each in chain_of(error))


@contextmanager
def losses_are_expected(what: str, is_over: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Log a loss that the program's function `what` raises after its share ended, and raise the unexplained rest."""
    try:
        yield
    except Exception as error:
        rest = without_losses(error)
        if rest is error or not is_over():
            raise
        if rest is not None:
            raise rest from None
        _log.warning("%s raised an error on a share that is not held any more, or is being revoked: %r", what, error)
