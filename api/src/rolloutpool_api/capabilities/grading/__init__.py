"""Grading in the API: `routes` has ended rollouts graded again, `checks` looks at the graders of a batch."""
