"""What tests and demos of any distribution share: no network, no model, nothing to install.

`TINY_TOKENIZER` is a real tokenizer with a real chat template, small enough to be committed. Its files are the
output of `scripts/train_tiny_tokenizer.py` bit by bit; they are never edited by hand.
"""

from pathlib import Path

__all__ = ["TINY_TOKENIZER"]

TINY_TOKENIZER = Path(__file__).parent / "tiny_tokenizer"
"""Directory with tokenizer.json, tokenizer_config.json and chat_template.jinja."""
