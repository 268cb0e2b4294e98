"""The client that a proxy forwards for: the nearest address that is no trusted proxy's."""

from __future__ import annotations

import pytest

from rota.access.proxies import NO_PROXIES, Proxies, parse_networks

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


def test_without_networks_nobody_is_trusted() -> None:
    assert NO_PROXIES.client_of("127.0.0.1", ["192.0.2.7"]) == "127.0.0.1"
