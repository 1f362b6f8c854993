"""Which hosts the pool may be made to call.

A request names the URLs that the pool will call, so each has to pass an allow-list, twice: when it is submitted, by
name or literal address, and when a connection is made, by every address that the name has at that moment. A name in
the list may have public addresses; any other address must lie in a listed network. Some addresses are never called,
listed or not: link-local ones and the other places where clouds keep their machines' credentials.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Address", "Network", "Targets", "TargetsInvalid", "as_address", "is_loopback", "parse_networks"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ALLOWED_TARGETS = "ROLLOUTPOOL_ALLOWED_TARGETS"
LOOPBACK = "localhost,127.0.0.0/8,::1"
ALL_PORTS = range(65536)
_DEFAULT_PORTS = {"http": 80, "https": 443}

NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "169.254.0.0/16",
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "168.63.129.16/32",  # of Azure
        "192.0.0.192/32",  # of Oracle Cloud
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/128",
        "fd00:ec2::254/128",  # of AWS
        "fd20:ce::254/128",  # of Google Cloud
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
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
        """Entries separated by commas or white space: names, `*.suffix`, `*`, addresses, networks.

        Each may have `:port` or `:first-last` behind it where only those ports are meant (IPv6 in brackets then).
        Raises `TargetsInvalid`, which names the entry.
        """
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
        """This machine alone."""
        return cls.parse(LOOPBACK)

    @classmethod
    def none(cls) -> Self:
        """No host at all."""
        return cls((), ())

    def refuse_url(self, url: str) -> str | None:
        """Why a URL may not be called, as far as can be said without asking for its addresses; None where it may."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return "is no URL that can be called"
        if "@" in parts.netloc:
            return "must not hold user and password; a callback's key is `callback_api_key`"
        # What is not printable, `urlsplit` leaves out in silence.
        if not host or not url.isprintable():
            return "is no URL that can be called"
        return self.refuse_host(host, _DEFAULT_PORTS.get(parts.scheme, 0) if port is None else port)

    def refuse_host(self, host: str, port: int) -> str | None:
        """Why a host may not be called at this port; where a name passes, its addresses are still to be checked."""
        literal = as_address(host)
        if literal is not None:
            return self.refuse_address(literal, port, listed=True)
        name = host.lower().removesuffix(".")
        if not _NAME.fullmatch(name) or "*" in name:
            return f"{name[:100]!r} is neither a host name in ASCII nor an address"
        if any(known.fits(name, port) for known in self._names):
            return None
        return f"{name[:100]}:{port} is not in {ALLOWED_TARGETS}; the operator lists it, for API and workers alike"

    def refuse_address(self, address: Address, port: int, *, listed: bool = False) -> str | None:
        """Why this address may not be called at this port.

        `listed` demands that it lies in a listed network, public or not: for an address that no listed name led to.
        """
        for reached in _reached(address):
            if any(reached in network for network in NEVER):
                return f"{address} is never called: link-local, metadata, multicast, reserved or unspecified"
            if any(known.fits(reached, port) for known in self._networks):
                continue
            if listed or not reached.is_global:
                return f"{address} at port {port} is in no network of {ALLOWED_TARGETS}, where it has to be listed"
        return None


def as_address(host: str) -> Address | None:
    """The host as an address; None where it is a name, or has a zone."""
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this host is reached from this machine alone."""
    address = as_address(host.strip("[]"))
    return address.is_loopback if address is not None else host.lower() == "localhost"


def parse_networks(text: str) -> tuple[Network, ...]:
    """Networks separated by commas or white space; raises `TargetsInvalid`, which names the entry."""
    found = []
    for entry in text.replace(",", " ").split():
        network = _network(entry)
        if network is None:
            raise TargetsInvalid(f"{entry!r} is no network, such as 10.1.0.0/16 or fd00:1::/64")
        found.append(network)
    return tuple(found)


def _split(entry: str) -> tuple[str, range]:
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
    """Where a packet to this address ends: at the IPv4 address inside it, where it is translated or tunnelled."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    # `::1` and `::` are no IPv4 addresses, all others of their network are.
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return (address,)
