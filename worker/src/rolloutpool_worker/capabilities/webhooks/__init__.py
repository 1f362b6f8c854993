"""Webhooks in a worker: `sender` pushes what is due. `opened` is the capability's part of a process."""
