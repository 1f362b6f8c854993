"""The tokens of a rollout, without a tokenizer and without a network.

- `ledger` holds the ids of one conversation, their masks and their log-probabilities.
- `entries` are the records that a ledger is the sum of, and the samples that it gives.
"""
