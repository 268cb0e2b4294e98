"""The client that a proxy forwards for: the nearest address that is no trusted proxy's."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from rota.core.access import sources
from rota.core.access.sources import MAX_HOPS, Proxies, parse_networks

OURS = Proxies(parse_networks("10.0.0.0/8, 2001:db8::/32"))


@pytest.mark.parametrize(
    ("forwarded_for", "client"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        (["192.0.2.7", "10.0.0.2,2001:db8::3"], "192.0.2.7"),
        (["10.6.6.6, 192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7:4711"], "192.0.2.7"),
        (["[2001:db9::7]:4711, [2001:db8::3]"], "2001:db9::7"),
        (["::ffff:192.0.2.7"], "192.0.2.7"),
        (["10.0.0.2"], "10.0.0.2"),
        (["192.0.2.7, unknown, 10.0.0.2"], "10.0.0.2"),
        (["<script>"], "10.0.0.1"),
        ([""], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_client_is_the_nearest_hop_that_is_no_proxy_of_ours(forwarded_for: list[str], client: str) -> None:
    assert OURS.client_of("10.0.0.1", forwarded_for) == client


@pytest.mark.parametrize("stranger", ["192.0.2.9", "testclient", ""])
def test_a_stranger_is_itself_whatever_it_says(stranger: str) -> None:
    assert OURS.client_of(stranger, ["192.0.2.7"]) == stranger


def a_chain(hops: int, first: str = "10.0.0.2") -> list[str]:
    """A header with so many proxies of ours behind its first entry."""
    return [", ".join([first, *("10.0.0.3" for _ in range(hops - 1))])]


@pytest.mark.parametrize("separator", [",", "lines"])
def test_a_longer_chain_is_not_believed(separator: str) -> None:
    """The connection's own address is the only one that no caller can forge."""
    chain = a_chain(MAX_HOPS + 1, "192.0.2.7")
    lines = chain if separator == "," else chain[0].split(", ")

    assert OURS.client_of("10.0.0.1", lines) == "10.0.0.1"


@pytest.mark.parametrize("lines", [[",".join(["10.0.0.2"] * 7_000)], ["10.0.0.2"] * 256, ["10.0.0.2," * 27] * 256])
def test_the_work_for_a_forged_chain_is_bounded(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done before the caller has shown an identity, so it is counted in addresses that are parsed."""
    parsed: list[str] = []

    def counting(text: str) -> IPv4Address | IPv6Address:
        parsed.append(text)
        return ip_address(text)

    monkeypatch.setattr(sources, "ip_address", counting)
    OURS.client_of("10.0.0.1", lines)

    # Each is parsed once as an entry, and once to see whether it is trusted.
    assert len(parsed) <= 2 * MAX_HOPS + 1
