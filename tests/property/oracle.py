"""What lies between two sampled turns, computed the expensive way: render the whole conversation, cut, tokenise.

Independent of the renderer under test: it renders the real history instead of a dummy, knows by hand where a family's
turn ends instead of probing, and encodes with `tokenizers` alone. Typed control strings are replaced by rare
letters before rendering, as many as they have, so that a template may cut and measure them; they are encoded
without added tokens behind it. It answers None where the template does not append, and raises `TemplateRaised` where
the template knows a typed control string (`/think` is in `</think>`): then there is nothing to compare with.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.property.families import FAMILIES
from tests.property.rare_families import RARE
from tests.property.wild_families import WILD
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["Message", "Oracle", "TemplateRaised", "turn_before"]

Message = dict[str, Any]

_MARK = "wYyW"  # what the policy said last
_FIRST, _MORE = 0x20000, "\U0002a6d0"  # the first letter says which control string it is; no filter changes either
_TYPED = re.compile(f"([\U00020000-\U0002a000]{_MORE}*)")

# The strings that end an answer and a turn with calls; a leading "^" means that the turn ends in front of them.
_ENDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "command_r_plus": (("<|END_OF_TURN_TOKEN|>",),) * 2,
    "deepseek_v3": (("<\uff5cend▁of▁sentence\uff5c>",),) * 2,
    "gemma3": (("<end_of_turn>",),) * 2,
    "llama3": (("<|eot_id|>",),) * 2,
    "llama3_1": (("<|eot_id|>",),) * 2,
    "llama3_2": (("<|eot_id|>",),) * 2,
    "mistral_nemo": (("</s>",),) * 2,
    "template:cohere2": (("<|END_OF_TURN_TOKEN|>",),) * 2,
    "template:deepseekv3": (("<\uff5cend▁of▁sentence\uff5c>",),) * 2,
    "template:gemma4_v2": (("<turn|>",),) * 2,
    "template:gemma4_v5": (("<turn|>",), ("<|tool_response>",)),
    "template:glm4moe": (("^<|user|>", "^<|observation|>", "^<|system|>"),) * 2,
    "template:gptoss": (("<|end|>",), ("<|call|>",)),
    "template:llama3_1": (("<|eot_id|>",),) * 2,
    "template:muse_glimmer": (("<|eot|>",),) * 2,
    "template:phi3_5": (("<|end|>",),) * 2,
}
_CHATML = (("<|im_end|>",),) * 2


class TemplateRaised(Exception):
    """The template has no render of this conversation."""


def turn_before(new: Sequence[Message]) -> Message:
    """The policy's turn that these messages answer: a call for each result."""
    calls = [
        {
            "id": message["tool_call_id"],
            "type": "function",
            "function": {"name": message["name"], "arguments": {"a": _MARK}},
        }
        for message in new
        if message["role"] == "tool"
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls} if calls else {"role": "assistant", "content": "x"}


def _parsed(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {
        **message,
        "tool_calls": [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in calls
        ],
    }


class Oracle:
    """One tokenizer as an attentive trainer would use it."""

    def __init__(self, name: str, directory: Path) -> None:
        """`name` finds what is known by hand about the family."""
        self.name = name
        source = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        self._whole = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._bare = Tokenizer.from_str(json.dumps({**source, "added_tokens": [], "post_processor": None}))
        self.chat: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(directory)
        template = self.chat.chat_template
        template = "".join(template.values()) if isinstance(template, dict) else template
        self.control = [
            token["content"]
            for token in source["added_tokens"]
            if token["content"].strip() and (token["special"] or token["content"] in template)
        ]
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.control, key=len, reverse=True))))
        self._spell = {text: chr(_FIRST + i) + _MORE * (len(text) - 1) for i, text in enumerate(self.control)}
        family = {**FAMILIES, **WILD, **RARE}.get(name.removeprefix("family:"))
        known = _ENDS.get(name, _CHATML) if family is None else (family.answer_ends, family.call_ends)
        self._answer_ends, self._call_ends = known
        self.needs_tools = family is not None and family.needs_tools
        self._appends: dict[str, bool] = {}
        self.outputs_by_hand = name in ("deepseek_v3", "template:deepseekv3")

    def prompt(self, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> list[int]:
        """Ids of a whole prompt. Raises TemplateRaised."""
        return self._ids(self._typed_text(messages, kwargs))

    def rendered_again(self, messages: Sequence[Message], kwargs: Mapping[str, Any], *, parsed: bool) -> list[int]:
        """Ids of a prompt as a trainer has them that renders everything, and escapes nothing. Raises TemplateRaised.

        With `parsed`, arguments become objects first, as in vLLM.
        """
        given = [_parsed(message) for message in messages] if parsed else messages
        return list(self._whole.encode(self._text(given, kwargs), add_special_tokens=False).ids)

    def delta(
        self, history: Sequence[Message], calls: int, new: Sequence[Message], kwargs: Mapping[str, Any]
    ) -> list[int] | None:
        """Ids behind the end of a policy turn with so many calls, up to the next generation point.

        None where the template rewrites history. Raises TemplateRaised.
        """
        if self.outputs_by_hand and new[0]["role"] == "tool":
            return self._outputs(history, new, kwargs)
        shape = repr([[m["role"] for m in history], [(m["role"], type(m["content"])) for m in new], kwargs])
        if shape not in self._appends:
            self._appends[shape] = self.appends(history, calls, new, kwargs)
        found = self._cut(history, calls, new, kwargs) if self._appends[shape] else None
        if found is None:
            return None
        text, end = found
        before, whole = self._ids(text[:end]), self._ids(text)
        return whole[len(before) :] if whole[: len(before)] == before else None

    def appends(
        self, history: Sequence[Message], calls: int, new: Sequence[Message], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether the template appends messages of this kind, each once and in order, whatever they say."""
        said = [f"pX{i}Xp" for i in range(len(new))]
        probes = [
            {**m, "content": {"r": text} if isinstance(m["content"], dict) else text}
            for m, text in zip(new, said, strict=True)
        ]
        try:
            found = self._cut(history, calls, probes, kwargs)
        except TemplateRaised:
            return False
        numbers = re.compile(r"pX\d+Xp")
        return found is not None and numbers.findall(found[0]) == numbers.findall(found[0], found[1]) == said

    def _cut(
        self, history: Sequence[Message], calls: int, new: Sequence[Message], kwargs: Mapping[str, Any]
    ) -> tuple[str, int] | None:
        """The whole text and where the policy's last turn ends in it."""
        turns = [turn_before(new)] if calls else []
        turns.append({**turn_before(new), "content": f"I say {_MARK}"})  # where the template prints no calls
        for turn in turns:
            text = self._typed_text([*history, turn, *new], kwargs)
            end = self._end(text, self._call_ends if calls else self._answer_ends)
            if end is not None:
                break
        first = next((i for i, m in enumerate(history) if m["role"] == "assistant"), len(history))
        for start in (history[:first], history):
            begun = self._typed_text(start, kwargs, generation_prompt=False)
            if not text.startswith(begun.removesuffix(str(self.chat.eos_token))):
                return None
        return None if end is None else (text, end)

    def _end(self, text: str, ends: Sequence[str]) -> int | None:
        start = text.rfind(_MARK)
        found = [(text.find(end.removeprefix("^"), start), end) for end in ends]
        places = sorted((at, end) for at, end in found if at >= 0)
        if start < 0 or not places:
            return None
        at, end = places[0]
        return at if end.startswith("^") else at + len(end)

    def _outputs(self, history: Sequence[Message], new: Sequence[Message], kwargs: Mapping[str, Any]) -> list[int]:
        """DeepSeek's outputs block, which its own template cannot write."""
        count = next((i for i, m in enumerate(new) if m["role"] != "tool"), len(new))
        if any(not isinstance(m["content"], str) for m in new[:count]):
            raise TemplateRaised
        begin, end = "<\uff5ctool▁outputs▁begin\uff5c>", "<\uff5ctool▁outputs▁end\uff5c>"
        one = "<\uff5ctool▁output▁begin\uff5c>{}<\uff5ctool▁output▁end\uff5c>"
        texts = [one.replace("{}", m["content"]) for m in self._typed(new[:count])]
        block = self._ids(begin + "\n".join(texts) + end)
        rest = self.delta(history, 0, new[count:], kwargs) if new[count:] else []
        if rest is None:
            raise TemplateRaised
        return [*block, *rest]

    def _typed_text(
        self, messages: Sequence[Message], kwargs: Mapping[str, Any], *, generation_prompt: bool = True
    ) -> str:
        """The text with typed control strings in other letters; raises TemplateRaised where it is another text then."""
        spelled = self._typed(messages)
        text = self._text(spelled, kwargs, generation_prompt=generation_prompt)
        if spelled != list(messages):
            plain = self._text(messages, kwargs, generation_prompt=generation_prompt)
            if _TYPED.sub(lambda match: self._meant(match.group()), text) != plain:
                raise TemplateRaised("it knows a control string that was typed")
        return text

    def _meant(self, spelled: str) -> str:
        """What was typed there; what the template cut off is missing."""
        return str(self.control[ord(spelled[0]) - _FIRST])[: len(spelled)]

    def _text(
        self,
        messages: Sequence[Message],
        kwargs: Mapping[str, Any],
        *,
        generation_prompt: bool = True,
    ) -> str:
        try:
            return str(
                self.chat.apply_chat_template(
                    list(messages),
                    add_generation_prompt=generation_prompt,
                    tokenize=False,
                    **kwargs,
                )
            )
        except Exception as error:  # a template raises what it likes
            raise TemplateRaised(str(error)) from None

    def _typed(self, messages: Sequence[Message]) -> list[Message]:
        return [{key: value if key == "role" else self._spell_in(value) for key, value in m.items()} for m in messages]

    def _spell_in(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(lambda match: self._spell[match.group()], value)
        if isinstance(value, dict):
            return {self._spell_in(k): self._spell_in(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._spell_in(item) for item in value]
        return value

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, piece in enumerate(_TYPED.split(text)):
            if i % 2:
                ids += self._bare.encode(self._meant(piece), add_special_tokens=False).ids
            elif piece:
                ids += self._whole.encode(piece, add_special_tokens=False).ids
        return ids
