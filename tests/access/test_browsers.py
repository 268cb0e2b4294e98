"""The rule for requests of browsers, over the cross product of its inputs, and in front of every route."""

from __future__ import annotations

import itertools

import pytest

from rota.core.access.browsers import Provenance, Site, Verdict, parse_host, parse_names, parse_origins, site_of

PASSED, UNPROVEN = Verdict.PASSED, Verdict.UNPROVEN
HOST, PAGE, MALFORMED = Verdict.FOREIGN_HOST, Verdict.FOREIGN_PAGE, Verdict.MALFORMED_HOST

OPEN = site_of(("127.0.0.1",), ("rota.example.org",), ("https://front.example.org",))
GUARDED = site_of(("127.0.0.1",), demands_proof=True)
STRICT = site_of(("127.0.0.1",), ("rota.example.org",), demands_proof=True)
SITES = {"open": OPEN, "guarded": GUARDED, "strict": STRICT}

OWN_PAGES: list[tuple[list[str], list[str]]] = [
    ([], []),
    (["same-origin"], []),
    (["none"], []),
    ([], ["http://{host}"]),
    (["same-origin"], ["http://{host}"]),
    (["same-origin"], ["https://proxy.example.net"]),
]
FOREIGN_PAGES: list[tuple[list[str], list[str]]] = [
    (["cross-site"], []),
    (["same-site"], []),
    (["same-origin", "cross-site"], []),
    (["unheard-of"], []),
    ([""], []),
    (["cross-site"], ["http://{host}"]),
    ([], ["http://evil.test"]),
    ([], ["null"]),
    ([], [""]),
    ([], ["chrome-extension://abc"]),
    ([], ["http://{host}", "http://evil.test"]),
    ([], ["http://{host}.evil.test"]),
    ([], ["http://{host}:1"]),
]
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "CONNECT", "get")


def expected(kind: str, method: str, *, known: bool, foreign: bool, navigates: bool) -> Verdict:
    """The rule in other words than the product's."""
    if not known and kind != "guarded":
        return HOST
    reads = method in ("GET", "HEAD")
    if foreign and not reads:
        return PAGE
    if kind == "open":
        return PAGE if foreign and not (navigates and method == "GET") else PASSED
    return UNPROVEN if foreign or not known else PASSED


@pytest.mark.parametrize("kind", SITES)
def test_the_verdict_over_the_cross_product(kind: str) -> None:
    hosts = {"127.0.0.1:8080": True, "localhost:8080": True, "evil.test:8080": False}
    pages = [(page, False) for page in OWN_PAGES] + [(page, True) for page in FOREIGN_PAGES]
    wrong = []
    for (host, known), (page, foreign), method, navigates in itertools.product(
        hosts.items(), pages, METHODS, (False, True)
    ):
        sites, origins = page[0], [origin.format(host=host) for origin in page[1]]
        asked = Provenance(method, [host], sites, origins, navigates)
        got = SITES[kind].judge(asked)
        if got is not expected(kind, method, known=known, foreign=foreign, navigates=navigates):
            wrong.append((asked, got))

    assert wrong == []


@pytest.mark.parametrize(
    "hosts",
    [[], ["a", "b"], ["127.0.0.1", "127.0.0.1"], [""], ["user@127.0.0.1"], ["127.0.0.1/"], ["a b"], ["a:b"], ["."]],
)
@pytest.mark.parametrize("kind", SITES)
def test_a_request_needs_exactly_one_host(kind: str, hosts: list[str]) -> None:
    assert SITES[kind].judge(Provenance("GET", hosts)) is MALFORMED


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LOCALHOST.:80", True),
        ("app.localhost", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("10.1.2.3:8080", True),
        ("rota.example.org:443", True),
        ("a.rota.example.org", False),
        ("notlocalhost", False),
        ("localhost.evil.test", False),
        ("127.0.0.1.evil.test", False),
        ("rota", False),
    ],
)
def test_a_site_knows_its_names_and_addresses(host: str, known: bool) -> None:
    assert (OPEN.judge(Provenance("GET", [host])) is PASSED) is known


def test_an_origin_that_the_operator_lists_may_write() -> None:
    asked = Provenance("POST", ["127.0.0.1"], ["cross-site"], ["https://front.example.org"])

    assert OPEN.judge(asked) is PASSED
    assert STRICT.judge(asked) is PAGE


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("https://rota.example.org", "rota.example.org", True),
        ("https://rota.example.org:443", "rota.example.org", True),
        ("http://rota.example.org", "rota.example.org:80", True),
        ("http://rota.example.org:8080", "rota.example.org", False),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://rota.example.org/path", "rota.example.org", False),
        ("https://a@rota.example.org", "rota.example.org", False),
    ],
)
def test_an_origin_is_compared_with_the_host_by_name_and_port(origin: str, host: str, own: bool) -> None:
    parsed = parse_host((host,))
    assert parsed is not None

    assert Site().owns(origin, parsed) is own


def test_any_host_may_be_allowed() -> None:
    assert site_of((), ("*",)).judge(Provenance("GET", ["evil.test"])) is PASSED


def test_lists_of_names_and_origins_are_checked() -> None:
    assert parse_names("A.example.org, *.b, ::1") == ("a.example.org", "*.b", "::1")
    assert parse_origins("https://a, http://b:8080/") == ("https://a", "http://b:8080/")
    for wrong in ("https://a", "a:80", "a.*", "*a", "a b"):
        with pytest.raises(ValueError, match="not a host name"):
            parse_names(wrong)
    for wrong in ("a", "null", "ftp://a", "https://a/b"):
        with pytest.raises(ValueError, match="not an origin"):
            parse_origins(wrong)
