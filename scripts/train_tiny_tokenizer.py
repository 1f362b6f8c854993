"""Trains the committed tiny tokenizer, with the same bytes on any CPython 3.11-3.13.

A byte-level BPE of 4096 ids with a ChatML template. Everything that decides the bytes is in this file: word lists,
seed, split pattern, template. All random numbers come from `random.Random(seed).random()`, because it is the only
method whose stream Python promises to keep between versions. Nothing depends on hash order or on installed texts.

    python scripts/train_tiny_tokenizer.py [DIRECTORY]
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

T = TypeVar("T")

DIRECTORY = Path(__file__).parent.parent / "common" / "src" / "rolloutpool_common" / "testing" / "tiny_tokenizer"
VOCAB_SIZE = 4096
MODEL_MAX_LENGTH = 4096
SEED = 20_250_711
SENTENCES = 12_000
DIALOGUES = 4_000

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Not special, as in the Qwen family, so that `skip_special_tokens` cannot remove a tool call.
MARKUP = (
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

# Single digits, so that a number has one id per digit; apart from that the usual contractions, words and signs.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

# The generation spans enclose exactly what a policy samples: from the end of the header to the close token, which it
# samples too. The template writes the newline after the close token.
CHAT_TEMPLATE = """\
{%- macro text(message) -%}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- elif message.content -%}
        {{- raise_exception('content must be a string or null') -}}
    {%- endif -%}
{%- endmacro -%}
{%- set first_is_system = messages and messages[0].role == 'system' -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if first_is_system -%}
        {{- text(messages[0]) + '\\n\\n' -}}
    {%- endif -%}
    {{- '# Tools\\n\\nYou may call one or more of these functions.\\n<tools>' -}}
    {%- for tool in tools -%}
        {{- '\\n' + (tool | tojson) -}}
    {%- endfor -%}
    {{- '\\n</tools>\\n\\nWrite each call as a JSON object between tags:\\n' -}}
    {{- '<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' -}}
{%- elif first_is_system -%}
    {{- '<|im_start|>system\\n' + text(messages[0]) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'system' and loop.first -%}
    {%- elif message.role == 'user' or message.role == 'system' -%}
        {{- '<|im_start|>' + message.role + '\\n' + text(message) + '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- generation -%}
        {%- if message.reasoning_content -%}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
        {%- endif -%}
        {{- text(message) -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function or call -%}
            {%- if not loop.first or text(message) -%}
                {{- '\\n' -}}
            {%- endif -%}
            {{- '<tool_call>\\n{"name": ' + (function.name | tojson) + ', "arguments": ' -}}
            {%- if function.arguments is string -%}
                {{- function.arguments -}}
            {%- else -%}
                {{- function.arguments | tojson -}}
            {%- endif -%}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>' -}}
        {%- endgeneration -%}
        {{- '\\n' -}}
    {%- elif message.role == 'tool' or message.role == 'function' -%}
        {{- '<|im_start|>tool\\n<tool_response>\\n' + text(message) + '\\n</tool_response><|im_end|>\\n' -}}
    {%- else -%}
        {{- raise_exception('unknown role ' + message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking -%}
        {{- '<think>\\n' -}}
    {%- endif -%}
{%- endif -%}
"""

VERBS = """
accept add agree allow answer appear apply arrive ask attend avoid believe borrow break bring build burn buy call
calculate carry catch change check choose claim clean clear climb close collect combine compare complete compute
connect consider contain continue convert cook copy correct count cover create cross cut decide define deliver
depend describe design develop discover discuss divide double draw drive drop earn enter estimate exchange expect
explain express fail fall feel fill find finish fix follow forget form gather give grow guess handle happen help
hold hope include increase inform insert interest invite join jump keep know laugh lead learn leave lend let lift
listen load lock look lose manage mark match mean measure meet mention mix move multiply need notice observe obtain
offer open order paint pass pay perform pick plan plant play point prepare present press prevent print produce
promise protect prove provide publish pull push put question reach read realise receive recognise record reduce
refuse relate remain remember remove repair repeat replace reply report request rest return ride roll round run
sail save search seem select sell send separate serve settle shape share show sign simplify solve sort speak spend
split stand start state stay stop store study subtract succeed suggest supply support suppose switch take talk teach
tell test thank think throw touch trace train translate travel treat trust try turn understand use value visit wait
walk want warn wash watch wear weigh win wish wonder work write
""".split()  # noqa: SIM905 - one word per line of a list would be 700 lines

NOUNS = """
account action address age air amount angle animal answer apple area arm army art article author autumn balance ball
bank base basket battle beach bed bird board boat body book bottle box branch bread bridge brother building business
butter cake camera capital captain card case cat cause cell centre century chair chance chapter child choice church
circle city class clock cloud coast coffee coin cold college colour column company computer concert condition contract
corner cost cotton country course cousin crowd culture cup customer danger data date daughter day dealer degree desk
detail device dinner direction distance doctor document dog dollar door dozen dream dress dust ear earth east edge
effect egg element end energy engine error evening event example exercise experience eye face fact factor family farm
father field figure film finger fire fish flag floor flower food foot force forest fraction friend fruit function game
garden gate glass goal gold government grain grass ground group guest hall hand harbour hat head health heart heat
height hill history holiday home horse hospital hotel hour house hundred idea industry information instrument island
job journey judge key kilogram kind king kitchen knowledge lake language law leaf leg length lesson letter level
library life light limit line list litre machine magazine man map market mathematics matter meal meaning member memory
message metal method middle midnight mile milk million mind minute mirror model moment money month moon morning mother
mountain mouth museum music name nation nature neck neighbour network news night noise north number object ocean office
officer oil operation opinion orange package page pair paper parent park part party past path pattern pencil people
percent period person picture piece place planet plate pocket poem police position power practice price principle
problem process product profit programme project property purpose quality quantity quarter queen queue radio rain rate
reason region result reward rice ring river road rock role roof room root rule salt sample sand school science sea
season seat second secret sentence series service shadow sheet ship shirt shop shoulder side signal silence silver
sister size skin sky sleep snow society soil soldier solution song sound south space spring square stage stamp star
station steam step stick stone storm story stranger street strength student subject success sugar summer sun surface
system table teacher temperature thing thousand thread ticket time token tool tooth total town trade traffic tree
triangle trouble truth uncle unit university valley variable vehicle view village voice volume wall war water wave
weather week weight wheel wife wind window winter wood word worker world writer yard year zone
""".split()  # noqa: SIM905 - one word per line of a list would be 700 lines

ADJECTIVES = """
able active afraid ancient angry bad beautiful better big bitter black blue brave brief bright broad brown busy calm
careful cheap clean clear clever common complex cool correct cruel dark dead dear deep different difficult dry early
easy empty equal even exact extra fair false famous fast final fine firm flat foreign free fresh full general gentle
gold good great green grey happy hard healthy heavy hidden high honest hungry important large late lazy left light
likely little local lonely long loose loud low lucky main modern narrow near neat necessary new nice normal odd old
open ordinary partial patient perfect plain pleasant polite poor possible present pretty private proper proud public
pure quick quiet rare ready real recent red regular rich right rough round sad safe secure separate serious several
sharp short silent similar simple single slow small smooth soft solid special steady steep straight strange strict
strong sudden sweet tall thick thin tight tiny tired true typical useful usual various violent warm weak wet white wide
wild wise wonderful wrong yellow young
""".split()  # noqa: SIM905 - one word per line of a list would be 700 lines

SUFFIXES = ("", "", "s", "ed", "ing", "er", "able", "ment", "ation")
STARTS = ("The", "A", "Every", "This", "That", "Some", "No", "Our", "Their", "Another", "Each", "My", "Your", "His")
LINKS = ("and", "but", "because", "although", "while", "before", "after", "when", "if", "so that", "unless", "until")
PREPOSITIONS = ("in", "on", "at", "by", "with", "from", "to", "under", "over", "near", "behind", "between", "through")
AUXILIARIES = (
    "will",
    "can",
    "may",
    "must",
    "should",
    "would",
    "could",
    "might",
    "did not",
    "does not",
    "won't",
    "I'll",
)
ENDS = (".", ".", ".", "!", "?", ";", ":", " ...", ")", '."')
PLACES = (
    "Zürich",
    "Århus",
    "Málaga",
    "São Paulo",
    "Łódź",
    "Köln",
    "東京",
    "北京",
    "Москва",
    "Αθήνα",
    "café",
    "naïve",
    "→",
    "€",
    "😀",
)

OPERATIONS = (
    ("add", "plus", "+", "sum"),
    ("subtract", "minus", "-", "difference"),
    ("multiply", "times", "*", "product"),
    ("divide", "divided by", "/", "quotient"),
)
ASK = ("Calculate", "What is", "Compute", "Please work out", "Find", "Tell me the result of", "How much is")
PLAN = (
    "I'll use the calculator tool.",
    "First I {name} the two numbers.",
    "Let me calculate the {noun} first.",
    "Next I need the {noun} of {a} and {b}.",
    "I will {name} {a} and {b}, then continue the calculation.",
    "The user wants {a} {words} {b}.",
)
CLOSE = (
    "The result is {r}.",
    "{a} {words} {b} equals {r}.",
    "So the final answer is {r}.",
    "The tool returned {r}, therefore the {noun} is {r}.",
    "Done: {a} {sign} {b} = {r}",
)


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One of the items. `Random.choice` isn't promised to give the same on another Python."""
    return items[int(rng.random() * len(items))]


def sentence(rng: random.Random) -> str:
    """An English-looking sentence over the word lists, with or without a subordinate clause."""
    words = [pick(rng, STARTS), pick(rng, ADJECTIVES), pick(rng, NOUNS)]
    words += [pick(rng, AUXILIARIES), pick(rng, VERBS) + pick(rng, SUFFIXES)]
    words += [pick(rng, PREPOSITIONS), "the", pick(rng, NOUNS) + pick(rng, ("", "s"))]
    if rng.random() < 0.4:
        words += [pick(rng, LINKS), "the", pick(rng, NOUNS), pick(rng, AUXILIARIES), pick(rng, VERBS)]
    if rng.random() < 0.2:
        words += [pick(rng, ADJECTIVES) + "ly", pick(rng, VERBS).capitalize()]
    if rng.random() < 0.05:
        words.append(pick(rng, PLACES))
    return " ".join(words) + pick(rng, ENDS)


def dialogue(rng: random.Random) -> Iterator[str]:
    """Yields what calculator rollouts have between control tokens: question, plan, call, result, answer, tools."""
    name, words, sign, noun = pick(rng, OPERATIONS)
    a, b = int(rng.random() * 100), int(rng.random() * 100) + 1
    result = {"add": a + b, "subtract": a - b, "multiply": a * b, "divide": a / b}[name]
    values = {"name": name, "words": words, "noun": noun, "sign": sign, "a": a, "b": b, "r": result}
    call = {"name": name, "arguments": {"a": a, "b": b}}
    yield f"user\n{pick(rng, ASK)} ({a} {sign} {b}) {pick(rng, OPERATIONS)[2]} {int(rng.random() * 10)}?"
    yield "assistant\n" + pick(rng, PLAN).format_map(values) + "\n"
    yield f"\n{json.dumps(call)}\n"
    if rng.random() < 0.3:
        yield f"\n{json.dumps(call, separators=(',', ':'))}\n"
    yield f"tool\n{result}\n"
    yield pick(rng, CLOSE).format_map(values)
    if rng.random() < 0.1:
        number = {"type": "number", "description": pick(rng, ("First number", "Second number", "Numerator"))}
        schema = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
        function = {"name": name, "description": f"{name.capitalize()} two numbers", "parameters": schema}
        yield json.dumps({"type": "function", "function": function})
        yield f"system\nYou are a {pick(rng, ADJECTIVES)} assistant.\n\n# Tools\n\nYou may call functions.\n"
        yield f"Error: Unknown function '{pick(rng, NOUNS)}'. Available: ['add', 'subtract']"


def corpus() -> Iterator[str]:
    """Yields the training text, always in the same order."""
    rng = random.Random(SEED)
    for _ in range(SENTENCES):
        yield sentence(rng)
    for _ in range(DIALOGUES):
        yield from dialogue(rng)


def train() -> Tokenizer:
    """The tokenizer: learned ids first, then the special and the markup tokens, `VOCAB_SIZE` in all.

    Raises:
        RuntimeError: the corpus is too small to fill the vocabulary.
    """
    added = len(SPECIAL) + len(MARKUP)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise RuntimeError(f"the corpus gave {tokenizer.get_vocab_size()} ids instead of {VOCAB_SIZE}: extend it")
    return tokenizer


def write(directory: Path) -> None:
    """Trains, and writes tokenizer.json, tokenizer_config.json and chat_template.jinja into `directory`."""
    config = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": MODEL_MAX_LENGTH,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "TokenizersBackend",
    }
    files = {
        "tokenizer.json": train().to_str() + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "chat_template.jinja": CHAT_TEMPLATE,
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        # Bytes, because text mode would write other line ends on Windows.
        (directory / name).write_bytes(text.encode())


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
