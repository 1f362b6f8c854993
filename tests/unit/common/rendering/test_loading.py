"""Loading a tokenizer, and every way in which it must fail with a reason."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.tiny_tokenizers import write_tokenizer
from tests.tokenizers.real import real_directory
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from rolloutpool_common.errors import TokenizerLoadFailed
from rolloutpool_common.rendering import TINY, TemplateMissing, TokenizerLoadError, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_fingerprint_tells_templates_apart(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, TEMPLATE)
    first = load_tokenizer(str(tmp_path)).fingerprint
    write_tokenizer(tmp_path, TEMPLATE + " ")
    second = load_tokenizer(str(tmp_path)).fingerprint
    assert first.tokenizer_sha256 == second.tokenizer_sha256
    assert first.template_sha256 != second.template_sha256


@pytest.mark.parametrize("name", ["/no/such/directory", "./nothing/here", "~/nothing/here", "no/such/directory"])
def test_a_missing_directory_is_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(TokenizerLoadError, match="no such directory"):
        load_tokenizer(name)


def test_an_unknown_name_fails_with_the_reason() -> None:
    with pytest.raises(TokenizerLoadError) as caught:
        load_tokenizer("rolloutpool/no-such-tokenizer")
    assert "rolloutpool/no-such-tokenizer" in caught.value.message
    assert "no such directory on this machine" in caught.value.message
    assert isinstance(caught.value, TokenizerLoadFailed)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.name, copy.reason) == (caught.value.name, caught.value.reason)


def test_a_tokenizer_without_template_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, None)
    with pytest.raises(TemplateMissing):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", ["", "{", "{}", "[]"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    write_tokenizer(tmp_path, TEMPLATE)
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerLoadError):
        load_tokenizer(str(tmp_path))


def test_custom_code_is_refused_without_asking(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "tokenization_evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n", encoding="utf-8")
    config = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(TokenizerLoadError):
        load_tokenizer(str(tmp_path))
    assert not ran.exists()


@pytest.mark.parametrize("wrong_class", ["LlamaTokenizer", "T5Tokenizer", "BertTokenizer", "GPT2Tokenizer"])
def test_a_wrong_class_never_gives_wrong_ids(tmp_path: Path, wrong_class: str) -> None:
    write_tokenizer(tmp_path, TEMPLATE)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = wrong_class
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    text = "def f(x):\n    return 3.14  # naïve 🙂"
    expected = load_tokenizer(TINY).encode(text)
    try:
        tokenizer = load_tokenizer(str(tmp_path))
    except TokenizerLoadError:
        return
    assert tokenizer.encode(text) == expected


def test_a_hub_cache_without_the_models_config_is_enough(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(TINY_TOKENIZER, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    # In a process of its own, because huggingface_hub reads HF_HOME when it is imported.
    program = (
        "from rolloutpool_common.rendering import load_tokenizer\n"
        "tokenizer = load_tokenizer('some/model')\n"
        "print(tokenizer.fingerprint.model_dump_json())\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == load_tokenizer(TINY).fingerprint.model_dump()


@pytest.mark.real_tokenizer
def test_a_directory_that_transformers_gets_wrong_is_loaded_right_or_not_at_all() -> None:
    directory = real_directory("gpt4")
    text = "def f(x):\n    return 3.14  # naïve 🙂 <|im_start|>"
    reference = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    automatic = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    assert automatic.encode(text, add_special_tokens=False) != reference  # else this fixture has lost its point
    assert load_tokenizer(str(directory)).encode(text) == reference


@pytest.mark.real_tokenizer
def test_a_real_directory_without_template_is_refused() -> None:
    with pytest.raises(TemplateMissing):
        load_tokenizer(str(real_directory("yi")))
