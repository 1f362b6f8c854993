"""Grading in the API.

- `routes` has ended rollouts graded again, adds what is said of them (`annotations`), and reads it.
- `checks` looks at the graders of a batch.
"""
