"""Engines in a worker: rollouts that vLLM or SGLang samples, asked with token ids.

- `policy` plans and asks the turns of a rollout. Start here. `tokens` is its ledger, which is the engine's prompt.
- `channel` makes the calls; `api`, `vllm` and `sglang` say what differs between engines.
- `reply` checks what came back; `attachments` what an engine says of ids besides log-probabilities, which
  `turn_attachments` keeps until the conversation has ended.
- `engines` is what a process knows of its engines. `recorded` answers from a finished rollout's journal.
- `settings` bound all that. `opened` is the capability's part of a process.
"""
