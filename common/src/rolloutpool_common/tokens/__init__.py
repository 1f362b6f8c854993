"""The tokens of a rollout, without a tokenizer and without a network.

- `ledger` holds the ids of one conversation, their masks and their log-probabilities. Start here.
- `entries` are the ledger's journal: one entry per change.
- `segments` say where each run of ids came from.
- `samples` are the training sequences that a ledger gives.
- `comparison` says how a prompt that the trainer reports relates to the ledger.
- `arrays` turn ids and log-probabilities into arrays and text.
- `errors` are what a ledger refuses with.
"""
