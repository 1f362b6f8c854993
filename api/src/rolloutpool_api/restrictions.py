"""What this pool takes beyond what the protocol says: hosts, secrets, sizes.

The worker checks hosts again, by address; here a request is refused at once, with the place where the fault is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.protocol.batch import TrainerPorts
from rolloutpool_common.protocol.checks import check_callback_host
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import SecretsUnkept

__all__ = ["Restrictions"]

Place = tuple[str | int, ...]

_UNKEPT = str(SecretsUnkept.__doc__)


@dataclass(frozen=True)
class Restrictions:
    """The rules of one pool. Of values that are of the wrong type they say nothing; the models do."""

    targets: Targets
    keeps_secrets: bool
    max_messages: int

    @classmethod
    def of(cls, settings: ApiSettings) -> "Restrictions":
        """As an API process is configured."""
        return cls(
            targets=settings.targets,
            keeps_secrets=settings.secrets_file is not None,
            max_messages=settings.max_messages,
        )

    def check_batch(self, document: dict[str, Any], rollouts: list[Any], faults: FaultList) -> None:
        """Adds what breaks them in the document of `POST /v1/batches`."""
        verdicts: dict[str, str | None] = {}
        told: set[str] = set()
        for at, url in _urls(document, rollouts):
            if url not in verdicts:
                verdicts[url] = self.targets.refuse_url(url)
            # The endpoints of a rule have one place; the first that is refused speaks for all.
            if (verdict := verdicts[url]) is not None and (where := path(*at)) not in told:
                told.add(where)
                faults.add(where, verdict)
        if not self.keeps_secrets:
            for at in _secrets(document, rollouts):
                faults.add(path(*at), _UNKEPT)
        for index, rollout in enumerate(rollouts):
            if isinstance(rollout, dict) and (fault := self._messages(rollout.get("messages"))):
                faults.add(path("rollouts", index, "messages"), fault)

    def check_v1(self, request: RolloutRequest) -> Iterator[tuple[str, str]]:
        """Field and fault of what breaks them in a `POST /rollout`; `tool_server_url` is never called."""
        if verdict := self.targets.refuse_url(request.server_url):
            yield "server_url", verdict
        if request.callback_api_key and not self.keeps_secrets:
            yield "callback_api_key", _UNKEPT
        if fault := self._messages(request.messages):
            yield "messages", fault

    def _messages(self, messages: Any) -> str | None:
        if isinstance(messages, list) and len(messages) > self.max_messages:
            return f"has {len(messages)} messages, at most {self.max_messages}; raise ROLLOUTPOOL_MAX_MESSAGES"
        return None


def _urls(document: dict[str, Any], rollouts: list[Any]) -> Iterator[tuple[Place, str]]:
    """Every URL that the pool would call, with its place."""
    trainer = document.get("trainer")
    if isinstance(trainer, dict):
        listed = trainer.get("server_urls")
        for index, url in enumerate(listed if isinstance(listed, list) else ()):
            if _is_url(url):
                yield ("trainer", "server_urls", index), url
        for url in _by_rule(trainer):
            yield ("trainer", "host"), url
    for at, part in _parts(document, rollouts):
        for name in ("server_url", "callback_url"):
            if _is_url(part.get(name)):
                yield (*at, name), part[name]


def _secrets(document: dict[str, Any], rollouts: list[Any]) -> Iterator[Place]:
    for at, part in _parts(document, rollouts):
        for name in ("callback_api_key", "secret"):
            if isinstance(part.get(name), str) and part[name]:
                yield (*at, name)


def _parts(document: dict[str, Any], rollouts: list[Any]) -> Iterator[tuple[Place, dict[str, Any]]]:
    for name in ("defaults", "delivery"):
        if isinstance(part := document.get(name), dict):
            yield (name,), part
    for index, rollout in enumerate(rollouts):
        if isinstance(rollout, dict):
            yield ("rollouts", index), rollout


def _by_rule(trainer: dict[str, Any]) -> list[str]:
    try:
        return TrainerPorts.model_validate(trainer).urls()
    except ValueError:
        return []


def _is_url(value: Any) -> bool:
    """Whether the models find no fault with it."""
    try:
        return isinstance(value, str) and bool(check_callback_host(value))
    except ValueError:
        return False
