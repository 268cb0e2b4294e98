"""The addresses of a coordinator, as clients and commands take them."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

import httpx

HTTP = ("http", "https")
GRPC = ("grpc", "grpcs")
STREAM = ("grpc+stream", "grpcs+stream")
IS_THIS_ROTA = "is this a Rota server, or a proxy in front of it?"
"""What a client asks when the answer from an address is none of Rota's."""


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
