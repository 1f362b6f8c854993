"""One conversation, and the only code that writes its messages, tokens and journal.

- `conversation` is what agents see. Start here.
- `branch` is a line of talk with the policy: its steps, replayed or made and written down. A rollout has one or more.
- `callback_policy` and `chat_policy` are whom a branch asks; they plan turns and open tokens.
- `beginning` has first turns that are recorded, and says how the first own one is sampled.
- `journal` replays what earlier attempts wrote, and makes each record durable.
- `history` holds the messages; `measures` sums up what a result reports.
- `tokens` keeps the ledger; `echo` checks what the trainer reports against it.
- `mask_plan` decides which mask lengths to try; `first_prompt` finds out what the trainer's first prompt shows.
- `off_loop` moves long computations to a thread; `store_retry` repeats a write until Redis takes it.
"""
