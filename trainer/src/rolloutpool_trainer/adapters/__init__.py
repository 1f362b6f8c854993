"""Drives a pool from inside a trainer's own framework.

Each module has what its framework calls when it wants rollouts: it turns the framework's prompts into a submission,
waits, and gives the results back in the framework's types. The forms themselves are in `rolloutpool_rl.export`. A
framework is imported only when its adapter is used.

- `driver` runs rollouts, and runs those again that failed by the infrastructure; the others build on it.
- `installed` says what to install where a framework is missing.
- `trl`: a `rollout_func` for `GRPOTrainer`, and a rollout worker for `AsyncGRPOTrainer`.
- `verl`: an AgentLoop.
- `slime`: a rollout function, for slime and miles.
- `skyrl`: a generator.
- `areal`: a workflow.
- `openrlhf`: an agent executor.
- `verifiers`: an env server, for verifiers and prime-rl.
- `nemo_gym`: an agent server, for NeMo Gym and NeMo-RL.

Tinker and Marin have no call of this kind: their loops are yours, and take what
`rolloutpool_rl.export` and `rolloutpool_rl.verifiers_trace` make.
"""
