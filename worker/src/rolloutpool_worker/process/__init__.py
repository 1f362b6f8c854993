"""One worker process.

- `worker` starts the process, announces it, beats, publishes, drains and stops.
- `event_loop` is the loop's thread, and watches it.
- `isolation` starts a process of its own for suspected rollouts, and `trial` is the inside of that process.
- `preflight` tries whether a trainer's ports can be reached.
"""
