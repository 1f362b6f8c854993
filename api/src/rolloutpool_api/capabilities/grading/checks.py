"""Says what no model can see of the graders of a batch."""

from typing import Any

from rolloutpool_api.checks import Check, as_object
from rolloutpool_api.fault_list import path
from rolloutpool_common.protocol.batch import RolloutItem


class GraderCheck(Check):
    """The rollouts of a group have one grader: it may judge them together, and their rewards are compared."""

    def __init__(self) -> None:
        super().__init__()
        self._default: str | None = None
        self._graders: dict[str, str | None] = {}

    def see_document(self, document: dict[str, Any]) -> None:
        """Notes the grader of `defaults`."""
        self._default = _grader_of(as_object(document.get("defaults")))

    def see_rollout(self, index: int, raw: Any, item: RolloutItem | None) -> None:
        """Compares the rollout's grader with that of its group."""
        if item is None or item.group is None:
            return
        own = _grader_of(as_object(raw)) if "grader" in item.model_fields_set else self._default
        first = self._graders.setdefault(item.group, own)
        if first != own:
            text = f"group {item.group[:64]!r} has the grader {first!r} already; a group has one, or none"
            self.faults.add(path("rollouts", index, "grader", "name"), text)


def _grader_of(options: dict[str, Any]) -> str | None:
    name = as_object(options.get("grader")).get("name")
    return name if isinstance(name, str) else None
