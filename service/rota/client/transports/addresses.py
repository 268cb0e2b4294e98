"""From URLs to the transport that their scheme names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, parse_qsl, urlsplit

import httpx

from rota.client.transports.http import HttpTransport
from rota.client.transports.port import Transport
from rota.client.transports.renewing import RenewingTransport
from rota.credentials import Credentials

HTTP = ("http", "https")
GRPC = ("grpc", "grpcs")
STREAM = ("grpc+stream", "grpcs+stream")


def transport_to(
    urls: Sequence[str],
    headers: Mapping[str, str] | None,
    credentials: Credentials | None = None,
    *,
    direct: bool = False,
) -> Transport:
    """A transport to these addresses; ValueError if they are none, or not all of one scheme.

    `direct`: also go to owners at what they advertise.
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
    # Not before it is asked for: gRPC is not in the base install.
    if schemes <= set(GRPC):
        from rota.client.transports.grpc import GrpcTransport

        return GrpcTransport(urls, headers=headers, credentials=credentials, direct=direct)
    from rota.client.transports.stream import StreamTransport

    leave_after_ms = _leave_after_ms(parts[0])
    return StreamTransport(urls, headers=headers, leave_after_ms=leave_after_ms, credentials=credentials, direct=direct)


def split_address(url: str) -> SplitResult:
    """The parts of an address; ValueError if no coordinator can have it."""
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0 and not any(map(str.isspace, url))
    except ValueError as error:  # An IPv6 address without its end, or a port that is no port.
        raise ValueError(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in HTTP + GRPC + STREAM or not is_usable:
        raise ValueError(f"{url!r} is no http://, https://, grpc://, grpcs:// or grpc+stream:// URL")
    if parts.scheme in HTTP and not _has_a_host(url):
        raise ValueError(f"{url!r} is no URL: its host is neither a name nor an address")
    if parts.scheme in HTTP and ("?" in url or "#" in url):
        raise ValueError(f"{url!r} is no address: the paths of calls are added to it, so it must have no ? and no #")
    if parts.scheme not in HTTP and (parts.path.strip("/") or parts.fragment):
        raise ValueError(f"{url!r} is no address: one of gRPC is a host and a port, without a path")
    if parts.scheme in GRPC and parts.query:
        raise ValueError(f"{url!r} is no address: only grpc+stream:// has options behind a ?")
    return parts


def _has_a_host(url: str) -> bool:
    """Whether a request can be sent to the host of a URL."""
    try:
        return bool(httpx.URL(url).host.encode("idna"))
    except (httpx.InvalidURL, UnicodeError):
        return False


def _leave_after_ms(parts: SplitResult) -> int | None:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = options.pop("leave_after_ms", None)
    if options or (given is not None and not (given.isascii() and given.isdigit())):
        raise ValueError(f"{parts.query!r} is not leave_after_ms=MILLISECONDS")
    return None if given is None else int(given)
