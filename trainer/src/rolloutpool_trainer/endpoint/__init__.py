"""The endpoint that the pool calls back for each turn.

- `app` is the ASGI application, `server` serves it on its ports.
- `request` reads one call; `errors` says why one is refused.
- `sessions` and `prompts` continue each conversation from its own token ids.
- `policy` is the seam to whatever samples; `parsing` finds the tool calls in what it sampled.
- `sampling_log` remembers what was sampled; `checks` compares it with a result.
"""
