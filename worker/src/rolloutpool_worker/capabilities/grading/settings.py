"""The settings of graders."""

from pydantic import BaseModel, Field


class GraderSettings(BaseModel):
    """Holds what one worker gives its graders."""

    grader_timeout: float = Field(default=60.0, gt=0)
    """Longest wait for one answer of a grader, seconds; its rollout sets the deadline of all tries."""
    grader_processes: int = Field(default=2, ge=1, le=256)
    """Child processes at the most for each grader that is no `async` function; further rollouts wait."""
