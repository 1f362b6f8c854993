"""Holds what every process of the pool needs.

- `build` knows which commit the process was built from.
- `logs` sends all logging to standard error.
- `backoff` computes the delays before something is tried again; `background` starts and stops a task.
- `supervisor` starts child processes and keeps them, `child` is one of them, `launch` ties its life to ours.
- `obituaries` report how a parent's workers ended; `oom` knows whether it was for their memory.
- `stopping` ends a process by signals; `orphans` does what the first process of a container has to do.
- `garbage` lets the garbage collector run rarely in warm processes.
- `failpoints` let a test stop a process at a named line.
"""
