"""One conversation, and the only code that writes its messages, ledger and journal.

- `conversation` is what agents see.
- `journal` makes each turn durable before the next one begins.
- `tokens` holds each reply against the ledger.
- `mask_plan` decides which mask lengths to try.
- `first_prompt` finds out what the trainer's first prompt shows.
- `store_retry` holds a write until Redis takes it.
"""
