"""Every model that crosses the wire, one module per conversation. Pydantic only.

- `messages` and `sampling` are the words that the others use; `checks`, `limits` and `ids` are shared by requests.
- `batch`, `rollouts`, `groups`, `options` and `result` are the batch API; `push` is how results reach a webhook.
- `workers`, `tools`, `health` and `operations` are what operators ask; `errors` is how a refusal looks.
- `drift` names the differences between two prompts.
- `completions` is the callback, by which a worker asks a trainer for a turn.
- `v1` is protocol v1 between trainers and the pool.
- `answer` is the base of all answers.
"""
