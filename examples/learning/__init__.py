"""Proof that the pool's samples teach: a transformer learns to use the calculator, with right masks and wrong ones.

    make learn        one run, with progress
    make learn-all    all runs of docs/learning/README.md, and its plots

- `task`: questions, demonstrations, reward; `vocabulary`: a tokenizer of its own
- `transformer`: the model and its sampler; `demonstrations`: the supervised start
- `arms`: what differs between runs; `wrong_masks`, `faults`, `kills`: what goes wrong in them, on purpose
- `grpo`: the training loop; `records`: what a run leaves behind; `plots`: pictures and table of it
"""
