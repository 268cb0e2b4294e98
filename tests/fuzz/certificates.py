"""Clients' certificates that an authority has signed, but no sane one would have, in real handshakes."""

from __future__ import annotations

import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from random import Random

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rota.core.access.certificates import PeerCertificate, caller_of_certificate
from rota.server.grpc.server import _caller_of as caller_over_grpc
from rota.server.http.connection import certificate_of
from rota.server.tls import ServerTls, TlsFiles, validity_of
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import mutated

_TEXTS = (
    "spiffe://td/admin",
    "spiffe://td/low",
    "spiffe://",
    "SPIFFE://td/admin",
    "https://example.org/spiffe://td/admin",
    "spiffe://td/a\x00b",
    "spiffe://td/a b",
    "spiffe://td/%61dmin",
    "admin",
    "a, URI:spiffe://td/admin",
    "x" * 600,
    "",
)
_NAMES = ("worker", "admin\x00", "a, CN=admin", "cn:admin", "\u202eadmin", "x" * 64)
_FROM, _UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2049, 1, 1, tzinfo=UTC)


class CertificateFuzzer:
    """Shows each certificate to a server that demands one, and asks which caller it names."""

    cpu_s = staticmethod(time.thread_time)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Of fixed numbers, so that a seed makes the same cases again.
        self._ca_key = ec.derive_private_key(20_261_123, ec.SECP256R1())
        self._key = ec.derive_private_key(20_261_124, ec.SECP256R1())
        self._ca = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
        authority = self._built([x509.BasicConstraints(ca=True, path_length=None)], self._ca, self._ca_key)
        own = self._built([x509.SubjectAlternativeName([x509.DNSName("rota")])], x509.Name([]), self._key)
        self._file("ca.pem", authority)
        self._file("own.pem", own)
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key = self._key.private_bytes(pem, pkcs8, serialization.NoEncryption())
        (folder / "key.pem").write_bytes(key)
        files = TlsFiles(folder / "own.pem", folder / "key.pem", folder / "ca.pem")
        self._server = ServerTls(files, look_every_s=3_600)

    def play(self, random: Random) -> None:
        names = [_general_name(random) for _ in range(random.choice((1, 1, 2, 3)))]
        common = [x509.NameAttribute(NameOID.COMMON_NAME, random.choice(_NAMES))] * random.choice((0, 1, 2))
        certificate = self._built([x509.SubjectAlternativeName(names)], x509.Name(common), self._key)
        if random.random() < 0.5:
            self._check_the_name(certificate, names)
        else:
            self._shown(self._signed_again(random, certificate))
        with suppress(ValueError):
            validity_of(mutated(random, (self._folder / "own.pem").read_bytes()))
        with suppress(ValueError):
            validity_of(ssl.DER_cert_to_PEM_cert(mutated(random, _der(certificate))).encode())

    def _check_the_name(self, certificate: x509.Certificate, names: list[x509.GeneralName]) -> None:
        """A SPIFFE id is one only as the URI of the certificate, and only where there is no other."""
        ids = [each.value for each in names if isinstance(each, x509.UniformResourceIdentifier)]
        ids = [each for each in ids if each.startswith("spiffe://")]
        subject = self._shown(_der(certificate))
        if subject.startswith("spiffe://") and ids != [subject]:
            raise Broken(f"{subject} by a certificate with {names}")

    def _signed_again(self, random: Random, certificate: x509.Certificate) -> bytes:
        """The certificate with other bytes in its signed part, by the authority's signature all the same."""
        signed = mutated(random, certificate.tbs_certificate_bytes)
        signature = self._ca_key.sign(signed, ec.ECDSA(hashes.SHA256()))
        algorithm = bytes.fromhex("300a06082a8648ce3d040302")
        return _sequence(signed + algorithm + b"\x03" + _length(len(signature) + 1) + b"\x00" + signature)

    def _shown(self, der: bytes) -> str:
        """The subject that the server takes the client for, empty if it is refused."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        (self._folder / "client.pem").write_text(ssl.DER_cert_to_PEM_cert(der))
        try:
            client.load_cert_chain(self._folder / "client.pem", self._folder / "key.pem")
            shown = _handshake(client, self._server.context())
        except (ssl.SSLError, UnicodeDecodeError):
            return ""
        caller = None if shown is None else caller_of_certificate(shown)
        if caller != caller_over_grpc(ssl.DER_cert_to_PEM_cert(der).encode()):
            raise Broken(f"{caller} over HTTP, but another caller over gRPC, by {der.hex()}")
        return "" if caller is None else caller.subject

    def _built(
        self, extensions: list[x509.ExtensionType], subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._ca).public_key(key.public_key())
        builder = builder.serial_number(1).not_valid_before(_FROM).not_valid_after(_UNTIL)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._ca_key, hashes.SHA256())

    def _file(self, name: str, certificate: x509.Certificate) -> None:
        (self._folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _general_name(random: Random) -> x509.GeneralName:
    text = random.choice(_TEXTS)
    kinds = (x509.UniformResourceIdentifier, x509.UniformResourceIdentifier, x509.DNSName, x509.RFC822Name)
    match random.randrange(6):
        case 0:
            return x509.IPAddress(IPv4Address(random.getrandbits(32)))
        case 1:
            return x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64] or "x")]))
        case _:
            return _text_name(random.choice(kinds), text)


def _text_name(kind: Callable[[str], x509.GeneralName], text: str) -> x509.GeneralName:
    """Of that kind, or a DNS name where the library knows better than to make it."""
    try:
        return kind(text)
    except ValueError:
        return x509.DNSName(text)


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> PeerCertificate | None:
    """The certificate of the client as the server sees it, after a handshake in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    callee = server.wrap_bio(to_server, to_client, server_side=True)
    caller = client.wrap_bio(to_client, to_server)
    for _ in range(4):
        for side in (caller, callee):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    # Event loops do the same before they show the connection to the server, and end it if that fails.
    return certificate_of(callee)


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _sequence(content: bytes) -> bytes:
    return b"\x30" + _length(len(content)) + content


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes([size])
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(digits)]) + digits


@contextmanager
def opened() -> Iterator[CertificateFuzzer]:
    with tempfile.TemporaryDirectory() as folder:
        yield CertificateFuzzer(Path(folder))


CERTIFICATES = Target("certificates", "clients' certificates: names of every kind and changed bytes", opened)
