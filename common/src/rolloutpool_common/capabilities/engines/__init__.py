"""Engines, as all sides see them: what they say of ids besides log-probabilities.

- `wire` has the fields that they add. `attachments` says what there is, and to which ids it belongs. Start here.
- `kept` writes and reads what is stored of a rollout.
"""
