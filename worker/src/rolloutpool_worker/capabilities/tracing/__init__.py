"""Tracing in a worker: it sends OpenTelemetry spans of its rollouts to a collector, where an operator names one.

- `spans` says which spans a rollout has. Start here.
- `sender` sends them (extra `otel`). `settings` say where to. `opened` is the capability's part of a process.
"""
