"""TLS for HTTP and gRPC: certificate files are read again when they change, for new connections."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509

from rota.credentials import NewestContext
from rota.server.access.files import LOOK_EVERY_S, Reread
from rota.server.observability.census import Validity

if TYPE_CHECKING:
    import grpc


class UnusableCertificate(ValueError):
    """The files have no certificate chain with its key; the message never quotes the key."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a certificate chain and its key, and of the authorities for clients' certificates."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_optional: bool = False

    @property
    def paths(self) -> list[Path]:
        return [self.cert, self.key, *([self.client_ca] if self.client_ca else [])]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The content of the files for both libraries, checked for consistency."""

    context: ssl.SSLContext
    cert: bytes
    key: bytes
    client_ca: bytes | None
    validity: Validity


class ServerTls:
    """A server's side of TLS, and for mutual TLS between replicas also the client's side."""

    def __init__(self, files: TlsFiles, *, look_every_s: float = LOOK_EVERY_S) -> None:
        """Raises `UnusableCertificate`."""
        self._files = files
        self._loaded = Reread(files.paths, lambda: _load(files), look_every_s=look_every_s)

    def validity(self) -> Validity:
        """Return the validity of the current certificate."""
        return self._loaded.content.validity

    def context(self) -> ssl.SSLContext:
        """Return the context for asyncio. Each connection uses the current content of the files, including trusted
        authorities.

        Changing the context of a started connection, as `sni_callback` may, is too late for a client that resumes an
        earlier session: the session was already found, and its certificate is not verified again.
        """
        context = NewestContext(ssl.PROTOCOL_TLS_SERVER)
        context.newest = lambda: self._loaded.content.context
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC, which cannot request a certificate without requiring one."""
        import grpc

        seen: list[_Loaded] = [self._loaded.content]

        def newest() -> Any:
            found = self._loaded.content
            if found is seen[0]:
                return None
            seen[0] = found
            return _grpc_configuration(found)

        insists = self._files.client_ca is not None and not self._files.client_optional
        return grpc.dynamic_ssl_server_credentials(_grpc_configuration(seen[0]), newest, insists)

    def channel_credentials(self) -> tuple[object, grpc.ChannelCredentials]:
        """Return credentials for calls to a peer: they present our certificate and trust the CA's. The first part
        changes with it.
        """
        import grpc

        loaded = self._loaded.content
        return loaded, grpc.ssl_channel_credentials(loaded.client_ca, loaded.key, loaded.cert)


def _load(files: TlsFiles) -> _Loaded:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # For a key with a passphrase OpenSSL would prompt at the terminal.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL if files.client_optional else ssl.CERT_REQUIRED
        cert, key = files.cert.read_bytes(), files.key.read_bytes()
        client_ca = files.client_ca.read_bytes() if files.client_ca else None
        return _Loaded(context, cert, key, client_ca, validity_of(cert))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is unusable"
        names = ", ".join(map(str, files.paths))
        raise UnusableCertificate(f"no certificate chain with its key in {names}: {reason}") from error


def validity_of(chain: bytes) -> Validity:
    """Return the period in which all certificates of a PEM chain are valid; raise ValueError without a readable one."""
    found = x509.load_pem_x509_certificates(chain)
    begin = max(each.not_valid_before_utc for each in found)
    end = min(each.not_valid_after_utc for each in found)
    return Validity(begin.timestamp(), end.timestamp())


def _grpc_configuration(loaded: _Loaded) -> Any:
    import grpc

    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.cert)], loaded.client_ca)
