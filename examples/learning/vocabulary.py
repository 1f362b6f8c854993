"""A tokenizer for the task, as a directory that trainer and workers load: byte-level BPE, and a ChatML template.

It is learned from demonstrations, so words of the task are one token, and each digit is one. A small vocabulary makes a
small model. The template shows no tools: the demonstrations teach which there are. It writes arguments of calls as they
stand in the message, so a trainer that parses and prints them has other ids than those that were sampled.
"""

import json
import random
from pathlib import Path

from examples.learning.task import demonstration, questions
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 330
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# A word with its space, one digit, one sign, quotation marks and braces together, line ends.
_SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"
_TEMPLATE = """\
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' + (message.content or '') -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
            {%- if call.function.arguments is string -%}
                {{- call.function.arguments -}}
            {%- else -%}
                {{- call.function.arguments | tojson -}}
            {%- endif -%}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>tool\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
_CONFIG = {
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "model_max_length": 1024,
    "pad_token": "<|endoftext|>",
    "tokenizer_class": "TokenizersBackend",
}


def write_tokenizer(folder: Path) -> None:
    """Writes the files of the tokenizer; the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL) - len(MARKUP),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(_CONFIG))


def _texts() -> list[str]:
    rng = random.Random(1)
    found = []
    for question in questions(rng, 400):
        for message in demonstration(question, rng):
            found.append(f"{message['role']}\n{message['content']}\n")
            for call in message.get("tool_calls", ()):
                name = json.dumps(call["function"]["name"])
                found.append(f'\n{{"name": {name}, "arguments": {call["function"]["arguments"]}}}\n')
    return found
