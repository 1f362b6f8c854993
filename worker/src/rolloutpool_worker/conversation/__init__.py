"""One conversation, and the only code that writes its messages, tokens and journal.

- `conversation` is what agents see. Start here.
- `recorder` makes the steps that really happen, and writes them down.
- `journal` replays what earlier attempts wrote, and makes each record durable.
- `next_turn` plans how the next turn is asked, and asks it; `past_tokens` tells a restarted trainer the ids so far.
- `history` holds the messages; `measures` sums up what a result reports.
- `tokens` keeps the ledger; `echo` checks what the trainer reports against it.
- `mask_plan` decides which mask lengths to try; `first_prompt` finds out what the trainer's first prompt shows.
- `off_loop` moves long computations to a thread; `store_retry` repeats a write until Redis takes it.
"""
