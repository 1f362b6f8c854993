"""Says what this pool refuses although the protocol allows it: hosts, secrets, sizes.

Workers check hosts again, by the address that they connect to. Here a request is refused at once, and the answer says
where in the document the fault is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from rolloutpool_api.checks import Catalog, Check, Place, as_object
from rolloutpool_api.fault_list import path
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.protocol.batch import RolloutItem, TrainerPorts, TrainerUrls
from rolloutpool_common.protocol.checks import check_callback_host, check_header_value
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.security.targets import Targets, is_loopback
from rolloutpool_common.store import SecretsUnkept
from rolloutpool_common.store.secrets import FIELD

LONGEST_KEPT = 500
"""Characters of a URL whose verdict is remembered."""
_UNKEPT = str(SecretsUnkept.__doc__)


@dataclass(frozen=True)
class Restrictions:
    """The restrictions of one pool."""

    targets: Targets
    """Hosts that may be called."""
    keeps_secrets: bool
    """Whether there are keys to encrypt callers' secrets with."""
    max_messages: int
    """Messages that a rollout may begin with."""
    tool_servers: bool = False
    """Whether protocol v1's `tool_server_url` is called."""
    tokenizers: tuple[str, ...] = ()
    """Patterns of the tokenizers that rollouts may name."""
    any_tokenizer: bool = True
    """Whether rollouts may name all others too, as on loopback without a list."""

    @property
    def asks_workers(self) -> bool:
        """Whether what a rollout may name depends on the workers."""
        return not (self.any_tokenizer or self.tokenizers)

    @classmethod
    def of(cls, settings: ApiSettings) -> "Restrictions":
        """Reads them from an API process's settings."""
        return cls(
            targets=settings.targets,
            keeps_secrets=settings.secrets_file is not None,
            max_messages=settings.max_messages,
            tool_servers=settings.v1_tool_servers,
            tokenizers=settings.allowed_tokenizers,
            any_tokenizer=not settings.allowed_tokenizers and is_loopback(settings.api_host),
        )

    def checks(self, trainer: TrainerUrls | TrainerPorts | None, catalog: Catalog | None = None) -> list[Check]:
        """Makes the checks for the document of one `POST /v1/batches`."""
        secrets: list[Check] = [] if self.keeps_secrets else [_SecretCheck()]
        return [_HostCheck(self.targets, trainer), *secrets, _SizeCheck(self), _TokenizerCheck(self, catalog)]

    def refuse_url(self, url: str) -> str | None:
        """Says why a URL may not be called; None if it may. Trainers post the same one with each rollout."""
        # A long one is not kept: a thousand of them would be much memory.
        return _refuse_url(self.targets, url) if len(url) <= LONGEST_KEPT else self.targets.refuse_url(url)

    def check_v1(self, request: RolloutRequest, catalog: Catalog | None = None) -> Iterator[tuple[str, str]]:
        """Yields field and fault of what a `POST /rollout` breaks."""
        if fault := self.refuse_tokenizer(request.tokenizer_name, catalog):
            yield "tokenizer_name", fault
        if verdict := self.refuse_url(request.server_url):
            yield "server_url", verdict
        # Where it is not called, it may be anything.
        if self.tool_servers and request.tool_server_url:
            if not _is_url(request.tool_server_url):
                yield "tool_server_url", "must be an HTTP/HTTPS URL with a host"
            elif verdict := self.refuse_url(request.tool_server_url):
                yield "tool_server_url", verdict
        if fault := self.refuse_key(request.callback_api_key):
            yield "callback_api_key", fault
        if fault := self.refuse_messages(request.messages):
            yield "messages", fault

    def refuse_key(self, key: str | None) -> str | None:
        """Says why a rollout may not bring this key for its endpoint; None if it may, or brings none."""
        return _UNKEPT if key and not self.keeps_secrets else _refuse_header(key)

    def refuse_tokenizer(self, name: Any, catalog: Catalog | None) -> str | None:
        """Says why rollouts may not name this tokenizer; None if they may.

        Each name that nobody knows costs a worker a load, which others wait for. So beyond loopback only those are
        taken that the operator has named, to the API or, without such a list, to the workers.
        """
        if self.any_tokenizer or not isinstance(name, str):
            return None
        if self.tokenizers:
            allowed = any(fnmatchcase(name, pattern) for pattern in self.tokenizers)
            return None if allowed else "is not allowed here: ROLLOUTPOOL_ALLOWED_TOKENIZERS does not list it"
        # None alive, or one of an earlier release: nobody knows what workers were started with.
        if catalog is None or catalog.own_tokenizers is None:
            return None
        if name in catalog.own_tokenizers or name in {own.partition("@")[0] for own in catalog.own_tokenizers}:
            return None
        return (
            "is not allowed here: no live worker was started with it (ROLLOUTPOOL_TOKENIZERS); to allow others, list "
            "them in ROLLOUTPOOL_ALLOWED_TOKENIZERS (* allows all)"
        )

    def refuse_messages(self, messages: Any) -> str | None:
        """Says why a rollout may not begin with these messages; None if it may."""
        if isinstance(messages, list) and len(messages) > self.max_messages:
            return f"has {len(messages)} messages, at most {self.max_messages}; raise ROLLOUTPOOL_MAX_MESSAGES"
        return None


@lru_cache(maxsize=1024)
def _refuse_url(targets: Targets, url: str) -> str | None:
    return targets.refuse_url(url)


def _refuse_header(secret: str | None) -> str | None:
    try:
        check_header_value(secret or "")
    except ValueError as error:
        return str(error)
    return None


class _HostCheck(Check):
    """Every URL that the pool would call is allowed. Each is looked up once, however many rollouts have it."""

    def __init__(self, targets: Targets, trainer: TrainerUrls | TrainerPorts | None) -> None:
        super().__init__()
        self._targets = targets
        self._trainer = trainer
        self._verdicts: dict[str, str | None] = {}

    def see_document(self, document: dict[str, Any]) -> None:
        listed = as_object(document.get("trainer")).get("server_urls")
        for index, url in enumerate(listed if isinstance(listed, list) else ()):
            self._check(url, ("trainer", "server_urls", index))
        if isinstance(self._trainer, TrainerPorts):
            # All of its endpoints have one place in the document, so the first that is refused is enough.
            verdicts = (self._targets.refuse_url(url) for url in self._trainer.urls())
            if verdict := next(filter(None, verdicts), None):
                self.faults.add(path("trainer", "host"), verdict)
        self._check_urls(as_object(document.get("defaults")), ("defaults",))
        for capability in CAPABILITIES:
            for part, name in capability.called:
                if name in (found := as_object(document.get(part))):
                    self._check(found[name], (part, name))

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        self._check_urls(as_object(raw), ("rollouts", index))

    def _check_urls(self, part: dict[str, Any], at: Place) -> None:
        if "server_url" in part:
            self._check(part["server_url"], (*at, "server_url"))

    def _check(self, url: Any, at: Place) -> None:
        # What is no URL is a fault of its model already.
        if not _is_url(url):
            return
        if url not in self._verdicts:
            self._verdicts[url] = self._targets.refuse_url(url)
        if (verdict := self._verdicts[url]) is not None:
            self.faults.add(path(*at), verdict)


class _SecretCheck(Check):
    """No secret is sent to a pool that can't encrypt it."""

    def see_document(self, document: dict[str, Any]) -> None:
        self._check(as_object(document.get("defaults")), ("defaults",), FIELD)
        for capability in CAPABILITIES:
            for part, name in capability.secret:
                self._check(as_object(document.get(part)), (part,), name)

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        self._check(as_object(raw), ("rollouts", index), FIELD)

    def _check(self, part: dict[str, Any], at: Place, name: str) -> None:
        if isinstance(part.get(name), str) and part[name]:
            self.faults.add(path(*at, name), _UNKEPT)


class _TokenizerCheck(Check):
    """Every tokenizer is one that rollouts may name. Each name is looked up once."""

    def __init__(self, restrictions: Restrictions, catalog: Catalog | None) -> None:
        super().__init__()
        self._verdict = lru_cache(maxsize=None)(lambda name: restrictions.refuse_tokenizer(name, catalog))

    def see_document(self, document: dict[str, Any]) -> None:
        self._check(as_object(document.get("defaults")), ("defaults",))

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        self._check(as_object(raw), ("rollouts", index))

    def _check(self, part: dict[str, Any], at: Place) -> None:
        name = part.get("tokenizer_name")
        if isinstance(name, str) and (fault := self._verdict(name)):
            self.faults.add(path(*at, "tokenizer_name"), fault)


class _SizeCheck(Check):
    """No rollout begins with more messages than this pool takes."""

    def __init__(self, restrictions: Restrictions) -> None:
        super().__init__()
        self._restrictions = restrictions

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        if fault := self._restrictions.refuse_messages(as_object(raw).get("messages")):
            self.faults.add(path("rollouts", index, "messages"), fault)


def _is_url(value: Any) -> bool:
    """Whether the models find no fault with it; what they refuse, they report."""
    try:
        return isinstance(value, str) and bool(check_callback_host(value))
    except ValueError:
        return False
