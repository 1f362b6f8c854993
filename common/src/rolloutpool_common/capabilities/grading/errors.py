"""Says what can go wrong with a grade.

InfraFault
└── GraderFault
    └── GradeInvalid, GradeLate
"""

from rolloutpool_common.errors import InfraFault
from rolloutpool_common.outcomes import Boundary, Category


class GraderFault(InfraFault):
    """The rollout's grader failed."""

    boundary = Boundary.GRADER
    category = Category.GRADER_ERROR


class GradeInvalid(GraderFault):
    """The grader returned something that is no grade."""

    category = Category.GRADE_INVALID
    retryable = False


class GradeLate(GraderFault):
    """There was no grade when the grader's deadline passed."""

    def __init__(self, message: str | None = None, *, group: bool = False) -> None:
        """`group` says that the grade is one of a group."""
        super().__init__(message, retryable=False)
        self.category = Category.GROUP_GRADE_LATE if group else Category.GRADE_LATE
