"""A tiny tokenizer for tests and demos of any distribution; it needs no network and no model.

`TINY_TOKENIZER` is a real tokenizer with a real chat template, small enough to be committed. Its files are exactly what
`scripts/train_tiny_tokenizer.py` writes; they are never edited by hand.
"""

from pathlib import Path

__all__ = ["TINY_TOKENIZER"]

TINY_TOKENIZER = Path(__file__).parent / "tiny_tokenizer"
"""Directory with tokenizer.json, tokenizer_config.json and chat_template.jinja."""
