"""The workers: they take rollouts from the queue and run them against a trainer.

The rooms, in the order in which a rollout passes them; each imports only those below it:

- `queue` takes messages from Celery and shows them in Flower.
- `process` is one worker process: its event loop, its announcement, isolated rollouts.
- `rollout` makes one attempt at one rollout (claim, run, finish), with the services of its process.
- `agents` are the loops: call the policy, run its tools, repeat.
- `conversation` keeps messages, ledger and journal together; nothing else writes them.
- `policy` asks the trainer for a turn; `tools` runs what the policy calls.

Beside them: `settings`, `plugins` (registries of tools, agents and strategies) and `drain` (a clean shutdown).
"""
