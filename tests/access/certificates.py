"""A certificate authority of the tests. Its certificates may bear SPIFFE ids."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Certificate:
    """A chain and its key, in files."""

    cert: Path
    key: Path


class Authority:
    """Signs each certificate that a test asks for."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._number = 0
        self.good_for = timedelta(days=1)
        """Of certificates that are signed from now on."""
        self.file = folder / f"{name}.pem"
        signed = self._signed(self._name, self._key, [x509.BasicConstraints(ca=True, path_length=None)])
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, uri: str = "", common_name: str = "") -> Certificate:
        """A certificate for both sides of a connection, good for `name` and this machine."""
        names: list[x509.GeneralName] = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        if uri:
            names = [x509.UniformResourceIdentifier(uri)]
        return self.issue_for(name, names, [common_name] if common_name else [])

    def issue_for(self, name: str, names: Sequence[x509.GeneralName], common_names: Sequence[str]) -> Certificate:
        """A certificate in the files of that name, with exactly these names in it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each) for each in common_names])
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        alternatives: list[x509.ExtensionType] = [x509.SubjectAlternativeName(names)] if names else []
        signed = self._signed(subject, key, [*alternatives, x509.ExtendedKeyUsage(uses)])
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
        return files

    def client_context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority and shows the certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate.cert, certificate.key)
        return context

    def channel_credentials(self, certificate: Certificate | None = None) -> grpc.ChannelCredentials:
        if certificate is None:
            return grpc.ssl_channel_credentials(self.file.read_bytes())
        return grpc.ssl_channel_credentials(
            self.file.read_bytes(), certificate.key.read_bytes(), certificate.cert.read_bytes()
        )

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: list[x509.ExtensionType]
    ) -> x509.Certificate:
        self._number += 1
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(self._number)
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + self.good_for)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())
