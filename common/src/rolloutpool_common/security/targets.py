"""Says which hosts a request can make the pool call.

A request names the URLs that the pool will call, so each URL has to pass an allow-list, twice:

1. When the request is submitted (`refuse_url`): its host must be a listed name, or an address in a listed network.
2. When a worker connects (`refuse_address`): every address that the name has at that moment must be public, or lie in
   a listed network. So a name can't lead to a private address by a change of DNS.

Some addresses are never called, even if they are listed: link-local ones, and the places where clouds keep the
credentials of their machines.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ALLOWED_TARGETS = "ROLLOUTPOOL_ALLOWED_TARGETS"
LOOPBACK = "localhost,127.0.0.0/8,::1"
ALL_PORTS = range(65536)
_DEFAULT_PORTS = {"http": 80, "https": 443}

NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this machine itself, on many systems
        "169.254.0.0/16",  # link-local; most clouds' metadata is at 169.254.169.254
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "168.63.129.16/32",  # of Azure
        "192.0.0.192/32",  # of Oracle Cloud
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "::/128",  # unspecified
        "fd00:ec2::254/128",  # of AWS
        "fd20:ce::254/128",  # of Google Cloud
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local, the old form of private addresses
        "ff00::/8",  # multicast
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")
_SIIT = ipaddress.ip_network("::ffff:0:0:0/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
_THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
_NAME = re.compile(r"(?:\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)")
_ENTRY = re.compile(r"(?P<host>\[[^\]]+\](?:/\d+)?|[^:\[\]]+)(?::(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?)?")


class TargetsInvalid(ValueError):
    """An entry of the list of allowed targets can't be read."""


@dataclass(frozen=True)
class _Name:
    pattern: str
    """A host name in lower case, `*.suffix`, or `*`."""
    ports: range

    def fits(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        if self.pattern.startswith("*"):
            # The dot stays in, so `*.example.com` fits neither example.com nor notexample.com. Of `*` nothing is left,
            # which every name ends with.
            return host.endswith(self.pattern[1:])
        return host == self.pattern


@dataclass(frozen=True)
class _Net:
    network: Network
    ports: range

    def fits(self, address: Address, port: int) -> bool:
        return port in self.ports and address in self.network


class Targets:
    """An allow-list of hosts."""

    def __init__(self, names: Iterable[_Name], networks: Iterable[_Net]) -> None:
        """Use `parse`, `loopback` or `none`."""
        self._names = tuple(names)
        self._networks = tuple(networks)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a list of hosts."""
        names, networks = [], []
        for entry in text.replace(",", " ").split():
            host, ports = _split(entry)
            network = _network(host)
            if network is not None:
                networks.append(_Net(network, ports))
            elif _NAME.fullmatch(host.lower()):
                names.append(_Name(host.lower(), ports))
            else:
                raise TargetsInvalid(f"{entry!r} is neither a host name, `*.suffix`, an address nor a network")
        return cls(names, networks)

    @classmethod
    def loopback(cls) -> Self:
        """Allow this machine only."""
        return cls.parse(LOOPBACK)

    @classmethod
    def none(cls) -> Self:
        """Allow no host."""
        return cls((), ())

    def refuse_url(self, url: str) -> str | None:
        """Say why a URL may not be called; None if it may, as far as can be said without looking up its addresses."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return "is no URL that can be called"
        if "@" in parts.netloc:
            return "must not hold user and password; a callback's key is `callback_api_key`"
        # `urlsplit` silently drops characters that are not printable, so the URL would be another one.
        if not host or not url.isprintable():
            return "is no URL that can be called"
        return self.refuse_host(host, _DEFAULT_PORTS.get(parts.scheme, 0) if port is None else port)

    def refuse_host(self, host: str, port: int) -> str | None:
        """Say why a host may not be called at this port. A name that passes still has to have its addresses checked."""
        literal = as_address(host)
        if literal is not None:
            return self.refuse_address(literal, port, listed=True)
        # A dot at the end names the same host.
        name = host.lower().removesuffix(".")
        # The pattern is that of the list's entries, where a `*` may stand. In a URL it may not.
        if not _NAME.fullmatch(name) or "*" in name:
            return f"{name[:100]!r} is neither a host name in ASCII nor an address"
        if any(known.fits(name, port) for known in self._names):
            return None
        return f"{name[:100]}:{port} is not in {ALLOWED_TARGETS}; the operator lists it, for API and workers alike"

    def refuse_address(self, address: Address, port: int, *, listed: bool = False) -> str | None:
        """Say why an address may not be called at this port; None if it may."""
        for reached in _reached(address):
            if any(reached in network for network in NEVER):
                return f"{address} is never called: link-local, metadata, multicast, reserved or unspecified"
            if any(known.fits(reached, port) for known in self._networks):
                continue
            if listed or not reached.is_global:
                return f"{address} at port {port} is in no network of {ALLOWED_TARGETS}, where it has to be listed"
        return None


def as_address(host: str) -> Address | None:
    """Read a host as an address; None if it is a name, or has a zone."""
    try:
        # A zone, as in fe80::1%eth0, names an interface of the machine that connects.
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Tell whether a server that listens on this host can be reached from this machine only."""
    address = as_address(host.strip("[]"))
    return address.is_loopback if address is not None else host.lower() == "localhost"


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read networks separated by commas or white space; raises `TargetsInvalid`, which names the entry."""
    found = []
    for entry in text.replace(",", " ").split():
        network = _network(entry)
        if network is None:
            raise TargetsInvalid(f"{entry!r} is no network, such as 10.1.0.0/16 or fd00:1::/64")
        found.append(network)
    return tuple(found)


def _split(entry: str) -> tuple[str, range]:
    # An IPv6 address without brackets, so all of its colons are its own.
    if entry.count(":") > 1 and "[" not in entry:
        return entry, ALL_PORTS
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise TargetsInvalid(f"{entry!r} is neither a host nor a network; ports are written :8081 or :8081-8084")
    host = found["host"].replace("[", "").replace("]", "")
    if found["first"] is None:
        return host, ALL_PORTS
    first = int(found["first"])
    last = int(found["last"] or first)
    if not first <= last < len(ALL_PORTS):
        raise TargetsInvalid(f"{entry!r}: ports rise, and end at 65535")
    return host, range(first, last + 1)


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _reached(address: Address) -> tuple[Address, ...]:
    """Find where a packet to this address ends: if it is translated or tunnelled, at the IPv4 address inside it."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _NAT64_LOCAL:
        return _reached_through_local_nat64(address)
    # `::1` and `::` are no IPv4 addresses, all others of their network are.
    if address in _NAT64 or address in _SIIT or (address in _COMPATIBLE and int(address) > 1):
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return (address,)


def _reached_through_local_nat64(address: ipaddress.IPv6Address) -> tuple[Address, ...]:
    """Find the IPv4 addresses that may be in an address of the prefix for local use (RFC 8215); all have to pass.

    A network chooses 48, 56, 64 or 96 bits of it as its translation prefix. The IPv4 address comes after these bits,
    and never in bits 64 to 71, which are zero (RFC 6052). We don't know the choice, so we read all four places. A place
    that reads 0.x.x.x is most likely the padding of another form, and counts only if all four places do.

    Example: 64:ff9b:1::a9fe:a9fe is 169.254.169.254 after 96 bits, and 0.0.0.0 in the three other places.
    """
    octets = address.packed
    places = (octets[6:8] + octets[9:11], octets[7:8] + octets[9:12], octets[9:13], octets[12:16])
    found = tuple(ipaddress.IPv4Address(place) for place in places)
    return tuple(one for one in found if one not in _THIS_NETWORK) or found
