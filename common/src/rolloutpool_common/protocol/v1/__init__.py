"""Protocol v1: `request` is what `POST /rollout` takes, `response` is what it answers."""
