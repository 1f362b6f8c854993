"""Which URLs pass at submission, and which addresses when a connection is made."""

import ipaddress

import pytest

from rolloutpool_common.security.targets import Targets, TargetsInvalid, is_loopback, parse_networks

ANY = Targets.parse("*")
EVERYTHING = Targets.parse("*,0.0.0.0/0,::/0")


def passes(targets: Targets, url: str) -> bool:
    return targets.refuse_url(url) is None


@pytest.mark.parametrize(
    ("listed", "good", "bad"),
    [
        ("trainer", ["http://trainer:8081", "https://TRAINER/", "http://trainer./x"], ["http://a.trainer", "http://t"]),
        ("*.svc", ["http://a.svc", "http://a.b.SVC:1"], ["http://svc", "http://a.svc.evil", "http://asvc"]),
        ("*", ["http://anything", "http://a.b:1"], ["http://10.0.0.1", "http://127.0.0.1", "http://8.8.8.8"]),
        ("10.1.0.0/16", ["http://10.1.2.3:9"], ["http://10.2.0.1", "http://host", "http://[::1]"]),
        ("10.1.2.3", ["http://10.1.2.3"], ["http://10.1.2.4"]),
        ("8.8.8.8", ["http://8.8.8.8"], ["http://8.8.4.4"]),
        ("fd00:1::/64", ["http://[fd00:1::5]:8"], ["http://[fd00:2::5]"]),
        ("trainer:8081", ["http://trainer:8081"], ["http://trainer", "http://trainer:8082"]),
        ("trainer:8081-8084", ["http://trainer:8081", "http://trainer:8084"], ["http://trainer:8085"]),
        ("trainer:443", ["https://trainer"], ["http://trainer"]),
        ("10.0.0.0/8:8081", ["http://10.9.9.9:8081"], ["http://10.9.9.9:22"]),
        ("[fd00::1]:8081", ["http://[fd00::1]:8081"], ["http://[fd00::1]:1"]),
        ("[fd00::]/8:8081", ["http://[fd12::1]:8081"], ["http://[fd12::1]"]),
        ("a, b\n c", ["http://a", "http://b", "http://c"], ["http://d"]),
        ("", [], ["http://a", "http://127.0.0.1"]),
    ],
)
def test_the_list_says_what_passes(listed: str, good: list[str], bad: list[str]) -> None:
    targets = Targets.parse(listed)
    assert [url for url in good if not passes(targets, url)] == []
    assert [url for url in bad if passes(targets, url)] == []


def test_loopback_is_this_machine_alone() -> None:
    here = Targets.loopback()
    assert all(passes(here, url) for url in ("http://localhost:1", "http://127.9.9.9", "http://[::1]:8081"))
    assert not any(passes(here, url) for url in ("http://8.8.8.8", "http://10.0.0.1", "http://example.com"))
    assert not passes(Targets.none(), "http://localhost")


NEVER = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fec0::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
    "240.0.0.1",
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:a9fe:a9fe::1",
    "::ffff:0:169.254.169.254",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:abcd::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:a9:fea9:fe00:0",
    "64:ff9b:1::",
]


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_pass_no_list(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    host = f"[{address}]" if parsed.version == 6 else address
    assert "never called" in (EVERYTHING.refuse_url(f"http://{host}:80/latest") or "")
    assert EVERYTHING.refuse_address(parsed, 80) is not None


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::ffff:0:127.0.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:a00:0:100::",
    ],
)
def test_private_addresses_have_to_be_listed_whatever_name_leads_there(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert "has to be listed" in (ANY.refuse_address(parsed, 80) or "")
    assert EVERYTHING.refuse_address(parsed, 80) is None


def test_a_listed_name_may_have_public_addresses() -> None:
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b:1::808:808"):
        assert ANY.refuse_address(ipaddress.ip_address(address), 80) is None
        assert ANY.refuse_address(ipaddress.ip_address(address), 80, listed=True) is not None


def test_mapped_addresses_are_what_they_map() -> None:
    targets = Targets.parse("10.0.0.0/8")
    assert passes(targets, "http://[::ffff:10.1.1.1]")
    assert not passes(targets, "http://[::ffff:11.1.1.1]")


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pass@trainer",
        "http://user@trainer",
        "http://listed@evil",
        "http://listed\\@evil",
        "http://a b",
        "http://[::1",
        "http://[fe80::1%25eth0]",
        "http://[fe80::1%eth0]",
        "http://x:99999",
        "http://x:y",
        "http://",
        "http:///path",
        "http://\x00",
        "http://a\nb",
        "http://\u2024",
        "http://trainer\u3002evil",
    ],
)
def test_strange_urls_do_not_pass(url: str) -> None:
    assert not passes(Targets.parse("*,listed,trainer"), url)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.1."])
def test_other_spellings_of_an_address_are_names(host: str) -> None:
    """Only the resolver knows what they mean, so the connector checks what it says."""
    assert not passes(Targets.loopback(), f"http://{host}")


@pytest.mark.parametrize(
    "entry", ["a b:x", "http://x", "x:", "x:1-", "x:9-1", "x:70000", "10.0.0.0/33", "[::1", "*x", "a.*", "ä"]
)
def test_what_is_no_entry_is_named(entry: str) -> None:
    with pytest.raises(TargetsInvalid, match=r"^'"):
        Targets.parse(f"good {entry}")


def test_networks() -> None:
    assert [str(network) for network in parse_networks("10.1.2.3/8, fd00::/8\n::1")] == [
        "10.0.0.0/8",
        "fd00::/8",
        "::1/128",
    ]
    with pytest.raises(TargetsInvalid, match="'trainer' is no network"):
        parse_networks("10.0.0.0/8 trainer")


@pytest.mark.parametrize(
    ("host", "verdict"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.evil", False),
        ("example.com", False),
    ],
)
def test_loopback_hosts(host: str, verdict: bool) -> None:
    assert is_loopback(host) == verdict
