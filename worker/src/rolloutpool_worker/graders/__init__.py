"""Graders: functions that say what a rollout is worth, once its conversation is complete.

This is what plug-ins import. `capabilities.grading.base` says what a grader is and how to add one.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.grading.wire import Grade
    from rolloutpool_worker.capabilities.grading.base import GRADERS, Grader, grader

__all__ = ["GRADERS", "Grade", "Grader", "grader"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    worker, common = "rolloutpool_worker.capabilities.grading.base", "rolloutpool_common.capabilities.grading.wire"
    return getattr(importlib.import_module(common if name == "Grade" else worker), name)
