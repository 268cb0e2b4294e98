"""The HTTP/1.1 protocol of a server's listeners, with the fast path in front of the application."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from rota.access.caller import Caller
from rota.api.http.credentials import CERTIFICATE
from rota.api.http.fast_path import FastConnection, Head
from rota.api.http.framing import PIECE_BYTES, Part
from rota.api.http.owed import OwedAnswer
from rota.api.http.rendered import Rendered
from rota.server.http_protocol import GuardedHttpProtocol, ServerConfig

_NOTHING = Part.NOTHING
"""To read it from its class takes as long as a call of a function."""
UNWRITTEN_BYTES = 64 * 1024
"""Answers of the bytes that are parsed now are written when they take more. 64 KiB of requests may ask for 100 MiB, and
only then is it known whether the client reads."""

_log = logging.getLogger(__name__)


class FastHttpProtocol(GuardedHttpProtocol):
    """Lets `rota.api.http.fast_path` answer what it can; starts uvicorn's cycle for any other request.

    A request begins here while no other is under way. Its scope and its task are made once it is clear that the fast
    path does not answer it: at the end of its head, or of its body, or of the bytes that have arrived. The parser is
    llhttp for all of them, so both ways agree about where a request begins and ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fast: FastConnection | None = None
        self._is_postponed = False
        """The head of a request arrives that has no scope yet."""
        self._head: Head | None = None
        """Of the request whose body arrives, and which the fast path may answer."""
        self._body = b""
        self._begun = self._taken = 0
        """Requests that have begun, and that the fast path has taken, in the bytes that are parsed now."""
        self._answers: list[bytes] = []
        """Those of the bytes that are parsed now, to be written together."""
        self._unwritten_bytes = 0
        """Of these answers."""
        self._answered_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        assert isinstance(self.config, ServerConfig)
        path = self.config.fast_path
        if path is not None and self.entered is not None and not self.entered.only_probes:
            certificate: Caller | None = self._extensions.get(CERTIFICATE)
            self._fast = FastConnection(path, self.client[0] if self.client else "", certificate)

    def connection_lost(self, exc: Exception | None) -> None:
        answering: object = self._answering
        if isinstance(answering, OwedAnswer):
            answering.hang_up()
        if self._fast is not None:
            self._fast.forget()
            self._fast = None
        super().connection_lost(exc)

    # --- what arrives --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        fast = self._fast
        if fast is None or self._part is not _NOTHING or len(data) > PIECE_BYTES:
            super().data_received(data)
            return
        if not self._head_bytes and self._is_free() and self._take_known(fast, data):
            return
        is_between = self._is_between()
        self._begun = self._taken = 0
        self._take(data)
        if not (self._is_between() and (self._has_answered() or self._owes())):
            self._unset_keepalive_if_required()
        elif is_between and self._begun == self._taken == 1:
            fast.remember(data)

    def _take_known(self, fast: FastConnection, data: bytes) -> bool:
        """Answer a request whose bytes, or whose head, came before on this connection: without the parser."""
        known, default_headers = fast.known.get(data), self.server_state.default_headers
        answer: bytes | OwedAnswer | None
        try:
            if known is not None:
                answer = fast.ask(known, default_headers)
            else:
                answer = fast.answer_behind_head(data, default_headers)
        except Exception as error:
            answer = fast.failed(fast.head_of(data), error, default_headers)
        if isinstance(answer, OwedAnswer):
            self._owe(answer)
        elif answer is not None:
            self.transport.write(answer)
            self._note_written(1)
        return answer is not None

    def _parse(self, data: bytes) -> None:
        taken = self._taken
        super()._parse(data)
        if self._taken > taken and not self.transport.is_closing():
            # A request behind it has paused reading, and the end of the connection would not be noticed. uvicorn's
            # cycle goes on reading when its task asks for the body.
            self.flow.resume_reading()
        if self._head is not None:
            # Its body is not whole.
            self._head = None
            self._begin()
            if self._body:
                super().on_body(self._body)
        self._write_answers()

    # --- what the parser reports ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begun += 1
        if self._fast is None or not self._is_free():
            super().on_message_begin()
            return
        self._part, self._fields, self._is_postponed = Part.HEAD, 0, True
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        if not self._is_postponed:
            super().on_headers_complete()
            return
        head = self._plan()
        if head is None:
            self._begin()
            return
        if self.entered is not None:
            self.entered.asked()
        self._is_postponed = False
        self._head, self._body = head, b""
        self._part, self._has_begun = Part.BODY, True
        self._body_bytes = self._rest_bytes = self._fields = 0

    def on_body(self, body: bytes) -> None:
        if self._head is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        head = self._head
        if head is None:
            super().on_message_complete()
            return
        self._head = None
        answer = self._answer(head)
        if answer is None:
            self._begin()
            super().on_body(self._body)
            super().on_message_complete()
            return
        self._part, self._has_ended = _NOTHING, True
        self._taken += 1
        if isinstance(answer, OwedAnswer):
            self._owe(answer)
        else:
            self._answers.append(answer)
            self._unwritten_bytes += len(answer)
            if self._unwritten_bytes > UNWRITTEN_BYTES:
                self._write_answers()

    # --- inside --------------------------------------------------------------------------------------

    def _is_between(self) -> bool:
        """Whether the parser is between two requests, and has seen no byte of the next one."""
        return self._part is _NOTHING and not self._head_bytes

    def _owes(self) -> bool:
        """Whether an answer of the fast path is under way, and no request waits behind it."""
        cycle: object = self.cycle
        return isinstance(cycle, OwedAnswer) and not cycle.response_complete

    def _is_free(self) -> bool:
        """Whether a request that begins now is the only one, and its answer may be written at once."""
        cycle = self.cycle
        has_answered = cycle is None or cycle.response_complete  # type: ignore[redundant-expr]
        return has_answered and not self.flow.write_paused and not self.transport.is_closing()

    def _plan(self) -> Head | None:
        parser = self.parser
        if parser.get_http_version() != "1.1" or self.expect_100_continue:
            return None
        if self._fast is None or not parser.should_keep_alive() or parser.should_upgrade():
            return None
        return self._fast.plan(parser.get_method(), self.url, self.headers)

    def _answer(self, head: Head) -> bytes | OwedAnswer | None:
        if self._fast is None:
            return None
        default_headers = self.server_state.default_headers
        try:
            return self._fast.answer(head, self._body, default_headers)
        except Exception as error:
            # The parser would report it as bytes that are no HTTP.
            return self._fast.failed(head, error, default_headers)

    def _begin(self) -> None:
        """Begin the postponed request as uvicorn would have done at its first byte, and at the end of its head."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        self._is_postponed = False
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _write_answers(self) -> None:
        """Write what was answered of the bytes that were parsed."""
        if self._answers:
            answers, self._answers, self._unwritten_bytes = self._answers, [], 0
            self.transport.write(b"".join(answers))
            self._note_written(len(answers))

    def _owe(self, answer: OwedAnswer) -> None:
        """Write the answer when it has become known."""
        answer.write = self._write_owed
        self.cycle = self._answering = answer  # type: ignore[assignment]

    def _write_owed(self, owed: OwedAnswer, rendered: Rendered) -> None:
        """Write an answer that has become known, as uvicorn's cycle writes one; requests that wait behind it go on."""
        owed.response_complete = True
        default_headers, closes = self.server_state.default_headers, not owed.keep_alive
        assert self._fast is not None, "an answer that is owed to a client that is gone is not written"
        self.transport.write(self._fast.bytes_of(rendered, default_headers, closes=closes))
        if closes:
            self.transport.close()
        if closes or self.pipeline or self._refusal:
            self.on_response_complete()
        else:
            self._note_written(1)

    def _note_written(self, answers: int) -> None:
        """So many answers were written: the time of keep-alive begins anew."""
        self.server_state.total_requests += answers
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None and self._part is _NOTHING and self._has_answered():
            self._wait_for_next(self.timeout_keep_alive)

    def _wait_for_next(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """The timer is not set anew with each request of the fast path: so some time may be left, or an answer."""
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if not self._has_answered():
            self._wait_for_next(self.timeout_keep_alive)
        elif left > 0:
            self._wait_for_next(left)
        else:
            super().timeout_keep_alive_handler()

    def _refuse(self, reason: Exception) -> None:
        self._write_answers()
        super()._refuse(reason)
