"""An answer that the fast path owes: its call is not yet durable, waits for other members, or is another replica's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rota.api.http.rendered import CALLER_GONE, Rendered, render_failure
from rota.observability.metrics import Count, Metrics
from rota.replica.ports import Answer, Cancel, unpark


class OwedAnswer:
    """Stands on its connection where uvicorn has the cycle of a request, until the answer is written.

    So a client that closes, sends its next requests or stops reading meanwhile, a server that stops, and the deadlines
    of a connection find what they find for any other request: the names are those of uvicorn's cycle. Nothing waits
    for `message_event`, which all of them have in common, or reads `body`. A call that is parked holds no task and no
    future here, and ends with its client.
    """

    # Most of them stay as they are here, so that an answer sets none of them when it is made.
    message_event = asyncio.Event()
    body: bytes | bytearray = b""
    response_started = response_complete = disconnected = False
    keep_alive = True
    rendered: Rendered | None = None
    write: Callable[[OwedAnswer, Rendered], None] | None = None
    """Set by the connection where the answer is not known at once."""
    _waiters: Count | None = None
    """Where the call counts while it is parked."""
    _cancel: Cancel | None = None

    def __init__(self, metrics: Metrics, operation: str, render: Callable[[Answer], Rendered]) -> None:
        self._metrics = metrics
        self._operation = operation
        self._render = render

    def submit(self, submit: Callable[[Callable[[Answer], None]], Cancel | None], waiters: Count | None) -> None:
        """Begin the call. One that may park counts among `waiters`, and is cancelled when its client is gone."""
        try:
            cancel = submit(self._answered)
        except Exception as error:
            self._end(render_failure(error, self._operation))
            return
        if waiters is not None and self.rendered is None:
            self._waiters, self._cancel = waiters, cancel
            waiters.number += 1

    def hang_up(self) -> None:
        """The connection has ended. A call that does not park goes on, since it may have changed something."""
        if self._waiters is None or self.rendered is not None:
            return
        cancel, self.rendered = self._cancel, CALLER_GONE
        self._unpark()
        self._metrics.request_answered(self._operation, "GONE")
        unpark(cancel)

    def _answered(self, answer: Answer) -> None:
        if self.rendered is CALLER_GONE:
            return
        try:
            rendered = self._render(answer)
        except Exception as error:
            rendered = render_failure(error, self._operation)
        self._end(rendered)

    def _end(self, rendered: Rendered) -> None:
        """The answer is there. There is one only: a second one would be read as that of the next request."""
        assert self.rendered is None
        self.rendered = rendered
        if self._waiters is not None:
            self._unpark()
        self._metrics.request_answered(self._operation, rendered.code)
        if self.write is not None and not self.disconnected:
            self.write(self, rendered)

    def _unpark(self) -> None:
        assert self._waiters is not None
        self._waiters.number -= 1
        # The call knows its answer as well: the two would live until the collector comes.
        self._cancel = None
