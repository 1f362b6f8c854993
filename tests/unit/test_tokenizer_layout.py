"""Real tokenizers are laid out whole or not at all."""

from pathlib import Path

from tests.tokenizers.layout import over_tiny, place

FILES = {"tokenizer.json": b"{}", "tokenizer_config.json": b"[]"}


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_a_directory_that_is_right_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "name"
    place(target, FILES)
    inode = target.stat().st_ino
    place(target, FILES)
    assert target.stat().st_ino == inode
    assert contents(target) == FILES


def test_a_half_or_stale_directory_is_replaced_and_nothing_stays_behind(tmp_path: Path) -> None:
    target = tmp_path / "name"
    target.mkdir()
    (target / "tokenizer.json").write_bytes(b"half")
    (target / "old").touch()
    place(target, FILES)
    assert contents(target) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_control_strings_of_a_template_are_added_once() -> None:
    files = over_tiny("<|im_start|><|new|><|new|>{{ messages }}", "<|new|>")
    assert files["tokenizer.json"].count(b"<|new|>") == 1
    assert files["tokenizer_config.json"].count(b'"eos_token": "<|new|>"') == 1
