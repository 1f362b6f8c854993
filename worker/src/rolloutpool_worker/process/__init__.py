"""One worker process.

- `worker` starts the process, announces it, beats, publishes, drains and stops.
- `event_loop` is the loop's thread, and watches it.
- `isolation` runs a suspected rollout alone in a process of its own.
- `webhooks` pushes finished results to trainers.
- `preflight` tries whether a trainer's ports can be reached.
"""
