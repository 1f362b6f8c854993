"""What every process of the pool needs.

- `logs` sends all logging to standard error.
- `backoff` computes the delays before something is tried again; `background` starts and stops a task.
- `garbage` lets the garbage collector run rarely in warm processes.
- `failpoints` let a test stop a process at a named line.
"""
