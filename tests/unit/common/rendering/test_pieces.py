"""The pieces of a vocabulary, put together, read as the tokenizer itself reads the ids."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tokenizers.real import REAL_NAMES, real_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_common.rendering.pieces import find_pieces
from rolloutpool_common.testing import TINY_TOKENIZER

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "Hello, world!  two spaces",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m e\u0301",
    "\u6f22\u5b57\u3068\u304b\u306a \ud55c\uad6d\uc5b4 \U0001f642\U0001f469\u200d\U0001f680",
    '{"a": 15}\n\n\tdef f(x):\r\n',
    "\ufffd is a character too",
]


@pytest.fixture(scope="module")
def pieces(tiny: ChatTokenizer) -> TokenPieces:
    return find_pieces(tiny)


def test_any_text_reads_as_the_tokenizer_decodes_it(tiny: ChatTokenizer, pieces: TokenPieces) -> None:
    # Not as arguments, which hypothesis would print whole.
    @settings(deadline=None)
    @given(st.text(max_size=50))
    def reads_the_same(text: str) -> None:
        ids = tiny.encode(text)
        assert pieces.read(ids) == tiny.decode(ids)

    reads_the_same()


def test_every_id_is_there_and_parts_of_characters_are_bytes(tiny: ChatTokenizer, pieces: TokenPieces) -> None:
    assert len(pieces.pieces) == tiny.vocab_size
    (control,) = tiny.encode("<|im_end|>")
    assert pieces.pieces[control] == "<|im_end|>"
    ids = tiny.encode("\U0001f9ea")
    assert len(ids) > 1
    assert b"".join(map(pieces.bytes_of, ids)) == "\U0001f9ea".encode()
    assert all(pieces.pieces[token_id] is None for token_id in pieces.partial)
    for name in pieces.partial.values():
        with pytest.raises(UnicodeDecodeError):
            bytes.fromhex(name).decode()


def load(directory: Path, tokenizer: Tokenizer) -> ChatTokenizer:
    """Another tokenizer with the tiny one's template."""
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    config = json.loads((TINY_TOKENIZER / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["chat_template"] = TEMPLATE
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return load_tokenizer(str(directory))


def test_a_vocabulary_of_sentencepiece_with_bytes(tmp_path: Path) -> None:
    letters = [chr(n) for n in range(0x21, 0x7F)]
    words = ["<unk>", *(f"<0x{n:02X}>" for n in range(256)), "\u2581", *letters, "\u2581a", "ab"]
    backend = Tokenizer(
        models.BPE(
            vocab={word: n for n, word in enumerate(words)},
            merges=[("\u2581", "a"), ("a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = load(tmp_path, backend)
    found = find_pieces(tokenizer)
    assert found.pieces[words.index("\u2581a")] == " a"
    assert found.pieces[words.index("ab")] == "ab"
    assert found.partial[words.index("<0xE6>")] == "e6"
    assert found.pieces[words.index("<0x41>")] == "A"
    ids = tokenizer.encode("ab \u6f22 a")
    # A decoder drops the space with which the whole text begins; in the middle of a conversation it stays.
    assert found.read(ids).removeprefix(" ") == tokenizer.decode(ids) == "ab \u6f22 a"


def test_a_vocabulary_of_word_pieces_with_a_hole(tmp_path: Path) -> None:
    words = {"[UNK]": 0, "a": 1, "hello": 2, "##s": 3, "world": 9}
    backend = Tokenizer(models.WordPiece(vocab=words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    found = find_pieces(load(tmp_path, backend))
    # Three control tokens have the ids from 5 on.
    assert found.pieces[2:5] == [" hello", "s", None]
    assert found.pieces[8:] == [None, " world"]
    assert found.read([2, 3, 9]) == " hellos world"
    assert found.bytes_of(4) == "\ufffd".encode()


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", REAL_NAMES)
def test_texts_read_the_same_with_real_tokenizers(name: str) -> None:
    tokenizer = real_tokenizer(name)
    found = find_pieces(tokenizer)
    for text in TEXTS:
        ids = tokenizer.encode("a" + text)
        assert found.read(ids).lstrip(" ") == tokenizer.decode(ids).lstrip(" "), text
