"""A tokenizer of transformers that only renders, so that no second vocabulary is loaded."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast


def load_chat(directory: Path) -> Any:
    """A tokenizer of transformers that renders: the template and its variables, over an empty vocabulary."""
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    file = directory / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else config["chat_template"]
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}
    tokens = {k: v["content"] if isinstance(v, dict) else v for k, v in config.items() if k.endswith("_token") and v}
    names = {k: v for k, v in tokens.items() if isinstance(v, str)}
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=Tokenizer(BPE()), chat_template=template, **names)
