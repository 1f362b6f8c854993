"""The endpoint that the pool calls for each turn of a rollout.

- `app` is the ASGI application; its functions follow one call from the request to the answer.
- `request` parses a call, `reply` writes the answer, `errors` is every refusal.
- `sessions` has one rollout as the endpoint knows it; `session_store` keeps many of them.
- `session_proof` proves the tokens from which a forgotten session is restored.
- `prompts` renders what the policy sees; `tool_source` finds out which tools to show it.
- `mask_check` compares a request's `response_mask` with the one that the session says is right.
- `policy` is the seam to the model; `batching` samples turns together, `transformers_sampler` with a model of
  transformers; `pausing` holds them while weights change.
- `demonstrations` plays recorded conversations.
- `parsing` finds the tool calls in what was sampled.
- `sampling_log` counts every sampling; `checks` compares a session with the pool's result.
- `server` serves the application from a thread.
"""
