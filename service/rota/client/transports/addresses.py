"""Creation of the transport that a URL's scheme names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, parse_qsl

from rota.client.transports.http import HttpTransport
from rota.client.transports.port import Transport
from rota.client.transports.renewing import RenewingTransport
from rota.credentials import Credentials
from rota.protocol.wire.addresses import GRPC, HTTP, split_address


def transport_to(
    urls: Sequence[str],
    headers: Mapping[str, str] | None,
    credentials: Credentials | None = None,
    *,
    direct: bool = False,
) -> Transport:
    """Create a transport to these addresses; raise ValueError if they are invalid, or of several schemes.

    `direct`: also call owners at their advertised addresses.
    """
    transport = _transport_to(urls, headers, credentials, direct=direct)
    may_change = credentials is not None and (credentials.token_file or credentials.cert_file)
    return RenewingTransport(transport) if may_change else transport


def _transport_to(
    urls: Sequence[str], headers: Mapping[str, str] | None, credentials: Credentials | None, *, direct: bool
) -> Transport:
    parts = [split_address(url) for url in urls]
    schemes = {each.scheme for each in parts}
    if len(schemes) > 1:
        raise ValueError(f"addresses of one coordinator have one scheme, not {' and '.join(sorted(schemes))}")
    if schemes <= set(HTTP):
        return HttpTransport(urls, headers=headers, credentials=credentials, direct=direct)
    # Imported only if needed: gRPC is not in the base install.
    if schemes <= set(GRPC):
        from rota.client.transports.grpc import GrpcTransport

        return GrpcTransport(urls, headers=headers, credentials=credentials, direct=direct)
    from rota.client.transports.stream import StreamTransport

    leave_after_ms = _leave_after_ms(parts[0])
    return StreamTransport(urls, headers=headers, leave_after_ms=leave_after_ms, credentials=credentials, direct=direct)


def _leave_after_ms(parts: SplitResult) -> int | None:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = options.pop("leave_after_ms", None)
    if options or (given is not None and not (given.isascii() and given.isdigit())):
        raise ValueError(f"{parts.query!r} is not leave_after_ms=MILLISECONDS")
    return None if given is None else int(given)
