"""One worker process.

- `worker` owns what lives as long as the process: store, tokenizers, connections, the beat.
- `event_loop` is the loop's thread, and watches it.
- `isolation` runs a suspected rollout alone in a process of its own.
- `webhooks` pushes finished results to trainers.
- `preflight` tries whether a trainer's ports can be reached.
"""
