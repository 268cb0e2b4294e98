"""When certificates end is known before they do: in metrics, and to `rota doctor`."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rota.cli.calls import Server
from rota.cli.doctor import Checked, examine
from rota.cli.options import Shared
from rota.credentials import Credentials
from rota.server.lifecycle import serve
from rota.server.observability.census import Validity
from rota.server.observability.metrics import Metrics
from rota.server.settings import Address, Settings
from rota.server.tls import ServerTls, TlsFiles, validity_of
from tests.access.certificates import Authority
from tests.support.ports import free_port

DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def issued(authority: Authority, good_for: timedelta) -> bytes:
    """A new certificate in the files of that named `rota`."""
    authority.good_for = good_for
    return authority.issue("rota").cert.read_bytes()


def as_cryptography_reads(pem: bytes) -> Validity:
    read = x509.load_pem_x509_certificate(pem)
    return Validity(read.not_valid_before_utc.timestamp(), read.not_valid_after_utc.timestamp())


def test_a_chain_is_good_for_as_long_as_the_first_of_it_to_end(authority: Authority) -> None:
    long, short = issued(authority, 90 * DAY), issued(authority, 2 * DAY)

    assert validity_of(b"the chain:\n" + long + b"\n" + short) == as_cryptography_reads(short)


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x03\x30\x01\x02", b"\x02\x01\x05"])
def test_what_is_no_certificate_is_said_to_be_none(der: bytes) -> None:
    with pytest.raises(ValueError):
        validity_of(ssl.DER_cert_to_PEM_cert(der).encode())


def test_metrics_report_the_certificate_that_is_shown_now(authority: Authority) -> None:
    files = authority.issue("rota")
    metrics, tls = Metrics(), ServerTls(TlsFiles(files.cert, files.key), look_every_s=0)
    metrics.certificate_shown("clients", tls.validity)

    def ends_at() -> float | None:
        return metrics.registry.get_sample_value("rota_certificate_not_after_timestamp_seconds", {"use": "clients"})

    before = ends_at()
    issued(authority, 90 * DAY)

    assert before == pytest.approx(time.time() + DAY.total_seconds(), abs=60)
    assert ends_at() == pytest.approx(time.time() + 90 * DAY.total_seconds(), abs=60)


@pytest.mark.thorough
async def test_doctor_warns_of_a_certificate_overdue_for_renewal(tmp_path: Path, authority: Authority) -> None:
    shown, own = authority.issue("rota"), authority.issue("doctor", common_name="doctor")
    port = free_port()
    settings = Settings(
        store=f"sqlite:///{tmp_path / 'rota.db'}",
        http=Address("127.0.0.1", port),
        tls_cert_file=shown.cert,
        tls_key_file=shown.key,
        tls_client_ca_file=authority.file,
        shard_count=2,
    )
    credentials = Credentials(ca_file=authority.file, cert_file=own.cert, key_file=own.key)
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, stop=stop))
        doctor = Shared(f"https://127.0.0.1:{port}", "default", credentials=credentials)
        try:
            good = await until_said(doctor, lambda checked: checked.ok)
            issued(authority, timedelta(minutes=10))
            bad = await until_said(doctor, lambda checked: not checked.ok)
        finally:
            stop.set()

    assert "clients" in good.found
    assert "expires in 1.0 days" in good.found
    assert "see docs/runbooks/RotaCertificateEnds.md" in bad.found


async def until_said(doctor: Shared, is_so: Callable[[Checked], bool]) -> Checked:
    """The lines of `rota doctor` about certificates, once they are as expected."""
    async with asyncio.timeout(30):
        while True:
            for checked in await asyncio.to_thread(examined, doctor):
                if checked.check == "certificates" and is_so(checked):
                    return checked
            await asyncio.sleep(0.05)


def examined(doctor: Shared) -> list[Checked]:
    with Server(doctor) as server:
        return list(examine(server))
