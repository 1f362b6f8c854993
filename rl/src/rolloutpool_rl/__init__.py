"""The maths of reinforcement learning on token samples. Needs numpy, and no pool.

- `role_masks` and `role_spans` mask a conversation by who wrote which token.
- `advantages`, `losses`, `logits` and `reductions` are functions of arrays (numpy or torch).
- `inference_context`, `openai_choices` and `choice_conversation` make samples of an OpenAI server's replies.
- `padded_batch` and `export` turn the pool's results into what trainers read.
- `arrays` picks the array library; `errors` lists what can go wrong.

The modules that render messages need the extra `rendering`.
"""
