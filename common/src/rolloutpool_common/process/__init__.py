"""What every process of the pool needs.

- `logs` sends all logging to standard error.
- `garbage` lets the garbage collector run rarely in warm processes.
- `failpoints` let a test stop a process at a named line.
"""
