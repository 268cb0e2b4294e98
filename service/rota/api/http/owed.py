"""An answer that the fast path owes: its call is decided and not yet durable, or another replica decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rota.api.http.rendered import Rendered


class OwedAnswer:
    """Stands on its connection where uvicorn has the cycle of a request, until the answer is written.

    So a client that closes, sends its next requests or stops reading meanwhile, a server that stops, and the deadlines
    of a connection find what they find for any other request: the names are those of uvicorn's cycle. Nothing waits
    for `message_event`, which all of them have in common, or reads `body`.
    """

    # Most of them stay as they are here, so that an answer sets none of them when it is made.
    message_event = asyncio.Event()
    body: bytes | bytearray = b""
    response_started = response_complete = disconnected = False
    keep_alive = True
    rendered: Rendered | None = None
    write: Callable[[OwedAnswer, Rendered], None] | None = None
    """Set by the connection where the answer is not known at once."""

    def give(self, rendered: Rendered) -> None:
        """The answer is there. There is one only: a second one would be read as that of the next request."""
        assert self.rendered is None
        self.rendered = rendered
        if self.write is not None and not self.disconnected:
            self.write(self, rendered)

    def hang_up(self) -> None:
        """The client is gone before its answer. A call that changes something goes on; see `ParkedAnswer`."""
