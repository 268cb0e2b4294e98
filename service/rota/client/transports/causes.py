"""Conversion of errors during a call to `CoordinatorUnreachable`, with the cause in plain words."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import httpx

from rota.client.errors import CoordinatorUnreachable, UnreachableKind
from rota.credentials import CredentialsError
from rota.protocol.wire.addresses import IS_THIS_ROTA

_MAX_QUOTED = 200
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
_WAITS = frozenset({408, 425, 429})
"""Statuses below 500 with which a proxy asks the client to retry later."""


def cannot_connect(address: str, cause: str, kind: UnreachableKind = UnreachableKind.CONNECT) -> CoordinatorUnreachable:
    return CoordinatorUnreachable(f"cannot connect to {address}: {cause}", was_sent=False, kind=kind)


def no_answer(address: str, timeout_ms: int) -> CoordinatorUnreachable:
    detail = f"no answer within {timeout_ms} ms from {address}"
    return CoordinatorUnreachable(detail, kind=UnreachableKind.TIMEOUT)


def broken(address: str, cause: str) -> CoordinatorUnreachable:
    return CoordinatorUnreachable(f"the connection to {address} broke: {cause}")


def unexpected(address: str, error: BaseException) -> CoordinatorUnreachable:
    """Return the error for an exception that no rule here knows. The caller chains it."""
    return CoordinatorUnreachable(f"the call to {address} failed: {type(error).__name__}: {quoted(error)}")


def closed(*, was_sent: bool = False) -> CoordinatorUnreachable:
    return CoordinatorUnreachable("the client is closed", was_sent=was_sent, kind=UnreachableKind.CLOSED)


def credentials_failed(error: CredentialsError) -> CoordinatorUnreachable:
    return CoordinatorUnreachable(str(error), was_sent=False, kind=UnreachableKind.CREDENTIALS)


def foreign(what: str, *, is_lasting: bool = False) -> CoordinatorUnreachable:
    """Return the error for an answer of another program. `what` names it and the address."""
    return CoordinatorUnreachable(f"{what}; {IS_THIS_ROTA}", kind=UnreachableKind.FOREIGN_ANSWER, is_lasting=is_lasting)


def foreign_status(status: int, address: str, location: str = "") -> CoordinatorUnreachable:
    """Return the error for an HTTP status without a problem document of Rota's."""
    redirect = f" (a redirect to {location[:_MAX_QUOTED]})" if location and status < 400 else ""
    what = f"HTTP status {status} from {address}{redirect} without an error code of Rota's"
    return foreign(what, is_lasting=status < 500 and status not in _WAITS)


def together(failures: Sequence[CoordinatorUnreachable]) -> CoordinatorUnreachable:
    """Combine the failures of a call that could be sent to none of several addresses."""
    details = dict.fromkeys(failure.detail for failure in failures)
    return CoordinatorUnreachable("; ".join(details), was_sent=False, kind=failures[0].kind)


def ends_the_call(failure: CoordinatorUnreachable) -> bool:
    """Return whether the same call must not be tried at another address: it may have been sent, or no
    address can help.
    """
    return failure.was_sent or failure.kind in (UnreachableKind.CREDENTIALS, UnreachableKind.CLOSED)


def cause_of(error: Exception, address: str, connect_timeout_ms: int) -> CoordinatorUnreachable:
    """Return the error for an exception of an HTTP call."""
    if isinstance(error, CoordinatorUnreachable):
        return error
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, CredentialsError):
            return credentials_failed(each)
    match error:
        case httpx.ConnectTimeout():
            return cannot_connect(address, f"no connection within {connect_timeout_ms} ms")
        case httpx.ConnectError():
            return _of_connecting(chain, address)
        case httpx.TimeoutException():
            return CoordinatorUnreachable(f"no answer in time from {address}", kind=UnreachableKind.TIMEOUT)
        case httpx.DecodingError():
            return foreign(f"the answer from {address} cannot be decoded: {quoted(error)}")
        case httpx.LocalProtocolError():
            # The exception's text quotes the header, which may be the token.
            detail = f"the request to {address} cannot be sent: a header, perhaps the token, is not valid in HTTP"
            return CoordinatorUnreachable(detail, was_sent=False, kind=UnreachableKind.CREDENTIALS)
        case httpx.RemoteProtocolError() if not _broke_off(error):
            return foreign(f"the answer from {address} is not HTTP")
        case httpx.TransportError():
            return _of_a_broken_connection(chain, address)
        case _:
            return unexpected(address, error)


def quoted(error: BaseException) -> str:
    """Return an exception's own text, shortened for a message."""
    return str(error)[:_MAX_QUOTED] or type(error).__name__


def tls_distrust(reason: str) -> str:
    return f"TLS: certificate verify failed: {reason} (is ROTA_CA_FILE right?)"


NO_TLS = "TLS handshake failed: the server does not speak TLS"


def _of_connecting(chain: Sequence[BaseException], address: str) -> CoordinatorUnreachable:
    for each in chain:
        match each:
            case socket.gaierror():
                host = urlsplit(address).hostname
                cause = f"cannot resolve host name {host}: {each.strerror or quoted(each)}"
                return cannot_connect(address, cause, UnreachableKind.DNS)
            case ssl.SSLError():
                return cannot_connect(address, _tls_cause(each), UnreachableKind.TLS)
            case OSError() if each.errno is not None:
                return cannot_connect(address, os.strerror(each.errno).lower())
    return cannot_connect(address, quoted(chain[0]))


def _of_a_broken_connection(chain: Sequence[BaseException], address: str) -> CoordinatorUnreachable:
    for each in chain:
        match each:
            case ssl.SSLError():
                detail = f"the connection to {address} broke: {_tls_cause(each)}"
                return CoordinatorUnreachable(detail, kind=UnreachableKind.TLS)
            case OSError() if each.errno is not None:
                return broken(address, os.strerror(each.errno).lower())
    return broken(address, quoted(chain[0]))


def _tls_cause(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return tls_distrust(error.verify_message)
    if error.reason in _NO_TLS:
        return NO_TLS
    if isinstance(error, ssl.SSLEOFError):
        return "TLS handshake failed: the server closed the connection"
    return f"TLS handshake failed: {(error.reason or type(error).__name__).replace('_', ' ').lower()}"


def _broke_off(error: httpx.RemoteProtocolError) -> bool:
    return str(error).startswith(("Server disconnected", "peer closed"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, the outermost first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _chain(each)
        error = error.__cause__ or error.__context__
