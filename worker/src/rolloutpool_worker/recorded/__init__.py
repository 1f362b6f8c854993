"""A rollout that is run from its record: neither model, tools nor environment are asked for what is in it.

- `script` reads a result: for each turn, what was sampled after which prompt, and what the tools and the environment
  answered.
- `stand_ins` take the places of trainer, tools and environment, and answer from a script. Where it has nothing, they go
  on to the real ones, or end the replay.
"""
