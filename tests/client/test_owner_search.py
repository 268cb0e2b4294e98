"""Where a client goes to the owner of a group: where it may, and where the owner itself answers."""

from __future__ import annotations

import pytest

from rota.client.transports.owners import Owner, OwnerOutOfReach, OwnerReport, OwnerSearch

GROUP = ("default", "g")


class Network:
    """By URL, the replica that answers there and the owner that it names, `o`."""

    def __init__(self) -> None:
        self.advertised = ""
        self.own_port = 0
        self.who: dict[str, str] = {}
        self.owner = "o"
        self.asked: list[str] = []

    async def ask(self, _group: tuple[str, str], url: str) -> OwnerReport:
        self.asked.append(url)
        if url not in self.who:
            raise OwnerOutOfReach(url)
        return OwnerReport(self.owner, self.who[url], 7, self.advertised, self.own_port)

    async def address(self, *listed: str, anywhere: bool = False) -> str:
        owner = await OwnerSearch(self.ask, listed, anywhere=anywhere).find(GROUP, listed[0])
        assert owner is not None
        assert owner == Owner(owner.address, 7)
        return owner.address


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.mark.parametrize("at", ["http://localhost:80", "grpc+stream://[::1]:80", "https://host.example"])
async def test_an_owner_behind_a_listed_host_is_used_at_its_own_port(network: Network, at: str) -> None:
    own = at.removesuffix(":80") + ":8101"
    network.own_port, network.who = 8101, {at: "neighbour", own: "o"}

    assert await network.address(at) == own


@pytest.mark.parametrize("there", [{}, {"http://a:8101": "somebody else"}])
async def test_a_misleading_own_port_falls_back_to_the_shared_one(network: Network, there: dict[str, str]) -> None:
    network.own_port, network.who = 8101, {"http://a:80": "neighbour", **there}

    assert await network.address("http://a:80") == "http://a:80"


@pytest.mark.parametrize(
    ("listed", "advertised", "gone_to"),
    [
        ("http://a:80", "http://inside:80", "http://inside:80"),
        ("grpc://a:80", "grpc://inside:80", "grpc://inside:80"),
        ("grpc+stream://a:80", "grpc://inside:80", "grpc+stream://inside:80"),
        ("grpcs+stream://a:80", "grpcs://inside:80", "grpcs+stream://inside:80"),
    ],
)
async def test_an_advertised_owner_is_used_where_any_address_will_do(
    network: Network, listed: str, advertised: str, gone_to: str
) -> None:
    network.advertised, network.who = advertised, {listed: "x", gone_to: "o"}

    assert await network.address(listed, anywhere=True) == gone_to
    with pytest.raises(OwnerOutOfReach):
        await network.address(listed)


@pytest.mark.parametrize("advertised", ["http://inside:80", "grpc://inside:80", "", "inside:80"])
async def test_nothing_without_tls_is_gone_to_from_where_there_is_tls(network: Network, advertised: str) -> None:
    network.advertised, network.who = advertised, {"https://a:80": "x", advertised: "o"}

    with pytest.raises(OwnerOutOfReach):
        await network.address("https://a:80", anywhere=True)
    assert network.asked == ["https://a:80"]


async def test_an_advertised_machine_leads_to_the_owning_worker(network: Network) -> None:
    network.advertised = "http://b:80"

    async def ask(group: tuple[str, str], url: str) -> OwnerReport:
        reported = await network.ask(group, url)
        return OwnerReport(reported.replica_id, reported.reported_by, 7, reported.address, 8102 if "//b" in url else 0)

    network.who = {"http://a:80": "x", "http://b:80": "neighbour", "http://b:8102": "o"}
    owner = await OwnerSearch(ask, ["http://a:80", "http://b:80"], anywhere=False).find(GROUP, "http://a:80")

    assert owner == Owner("http://b:8102", 7)


async def test_while_nobody_owns_the_group_there_is_nowhere_to_go(network: Network) -> None:
    network.owner, network.who = "", {"http://a:80": "x"}

    assert await OwnerSearch(network.ask, ["http://a:80"], anywhere=True).find(GROUP, "http://a:80") is None
