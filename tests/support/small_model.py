"""A transformer that is as small as one can be, for tests of what samples and trains."""

from typing import Any


def small_model(vocabulary: int) -> Any:
    """A transformer of one layer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
    )
    return Qwen3ForCausalLM(config)
