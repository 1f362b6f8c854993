"""The maths of reinforcement learning on token samples. It needs numpy, and neither a pool nor a trainer.

Functions of arrays (lists, numpy or torch):

- `advantages`: relative to a group, or GAE over a response that holds tool tokens.
- `losses`: PPO's policy and value loss, KL and entropy per token.
- `reductions`: sums, means and whitening over the tokens that are trained.
- `logits`: where the logits of a response lie in a batch, and the log-probabilities of its tokens.
- `arrays`: one arithmetic for numpy and torch.

Results of a pool, in the forms of trainers:

- `training_rows`: what any trainer may ask of a sample; `formats`: a table for each trainer.
- `export`: rows for TRL, verl, slime, prime-rl, SkyRL, Tinker, NeMo-RL, AReaL, OpenRLHF and Marin.
- `verifiers_trace`: traces for verifiers. `nemo_gym_response`: answers of an agent for NeMo Gym and NeMo-RL.
- `attachments`: routed experts and sampling masks, put to the tokens of samples.
- `prefix_tree`: which samples of a group begin with the same ids, and how far.
- `turn_rewards`: what an environment says of each turn.
- `padded_batch`: results as one padded numpy batch, and as torch tensors.

Conversations without a pool; these modules need the extra `rendering`:

- `role_masks`, with `role_spans`: masks of offline data, by who wrote which message.
- `inference_context`, with `openai_choices`: training records from an OpenAI-style server's replies.
- `choice_conversation`: the same over many turns.
- `choice_groups`: such records as groups and batches, of Marin's kind.

`errors` lists what can go wrong. Import the modules; the package itself exports nothing, so that importing it costs
nothing.
"""
