"""Secrets are encrypted with the first key of a file and opened with any; a file that others can read is refused."""

import itertools
import os
from pathlib import Path

import orjson
import pytest
from cryptography.fernet import Fernet

from rolloutpool_common.errors import SecretUnreadable
from rolloutpool_common.store import SecretsFileInvalid, SecretStore, SecretsUnkept

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


def store(*keys: str, source: str = "here") -> SecretStore:
    return SecretStore(keys, source=source)


def key_file(path: Path, *keys: str, mode: int = 0o600) -> Path:
    path.write_text("\n".join(keys) + "\n")
    path.chmod(mode)
    return path


def test_what_is_sealed_can_be_opened_and_shows_nothing() -> None:
    encrypted = store(OLD).encrypt("MARKER é")
    assert "MARKER" not in encrypted
    assert store(OLD).decrypt(encrypted) == "MARKER é"
    assert store(OLD).encrypt("MARKER") != store(OLD).encrypt("MARKER")


def test_a_key_is_replaced_node_by_node() -> None:
    """Added everywhere, then moved to the front everywhere, then taken out: at each step every node reads all."""
    steps = [store(OLD), store(OLD, NEW), store(NEW, OLD)]
    for before, after in itertools.pairwise(steps):
        assert after.decrypt(before.encrypt("x")) == before.decrypt(after.encrypt("x")) == "x"
    assert store(NEW).decrypt(steps[-1].encrypt("x")) == "x"


def test_a_missing_key_is_named_on_both_sides() -> None:
    encrypted = store(NEW).encrypt("MARKER")
    name = encrypted.partition(":")[0]
    with pytest.raises(SecretUnreadable, match=rf"encrypted with key {name} by the API.*\(SETTING=f\) has ") as raised:
        store(OLD, source="SETTING=f").decrypt(encrypted)
    assert "MARKER" not in str(raised.value)
    assert raised.value.retryable
    with pytest.raises(SecretUnreadable, match=r"\(no ROLLOUTPOOL_SECRETS_FILE\) has none"):
        SecretStore.none().decrypt(encrypted)


def test_what_was_changed_is_not_opened() -> None:
    encrypted = store(OLD).encrypt("x")
    name = encrypted.partition(":")[0]
    for changed in (
        encrypted[:-8] + "AAAAAAA=",
        encrypted[:40] + "AAAA" + encrypted[44:],
        encrypted[:20],
        encrypted + "é",
        name + ":",
    ):
        with pytest.raises(SecretUnreadable, match="was changed since"):
            store(OLD).decrypt(changed)


def test_plain_text_is_never_taken_for_a_secret() -> None:
    with pytest.raises(SecretUnreadable) as raised:
        store(OLD).decrypt("MARKER-MARKER-MARKER")
    assert "MARKER-MARKER" not in str(raised.value)


def test_documents_are_sealed_where_there_is_a_secret() -> None:
    encrypted: dict[str, str] = {}
    for plain in (b"{}", b'{"a":1}', b'{"callback_api_key":null}', b'{"callback_api_key":""}'):
        assert store(OLD).encrypt_field(plain, encrypted) == plain
    first, second = (store(OLD).encrypt_field(b'{"a":1,"callback_api_key":"MARKER"}', encrypted) for _ in range(2))
    assert first == second
    assert b"MARKER" not in first
    assert store(OLD).decrypt(orjson.loads(first)["callback_api_key"]) == "MARKER"
    assert orjson.loads(first)["a"] == 1


def test_without_a_key_nothing_is_stored() -> None:
    none = SecretStore.none()
    assert none.encrypt_field(b'{"a":1}', {}) == b'{"a":1}'
    with pytest.raises(SecretsUnkept, match="ROLLOUTPOOL_SECRETS_FILE"):
        none.encrypt_field(b'{"callback_api_key":"x"}', {})
    with pytest.raises(SecretsUnkept):
        none.encrypt("x")


def test_a_file_has_a_key_a_line(tmp_path: Path) -> None:
    file = key_file(tmp_path / "keys", NEW, OLD)
    assert SecretStore.load(file).decrypt(store(OLD).encrypt("x")) == "x"
    assert store(NEW).decrypt(SecretStore.load(file).encrypt("x")) == "x"
    # As a volume of Kubernetes has it.
    mounted = SecretStore.load(key_file(tmp_path / "k8s", NEW, mode=0o440))
    assert store(NEW).decrypt(mounted.encrypt("x")) == "x"
    with pytest.raises(SecretsUnkept):
        SecretStore.load(None).encrypt("x")


@pytest.mark.parametrize(("mode"), [0o644, 0o604, 0o666, 0o660, 0o620])
def test_a_file_for_others_is_refused(tmp_path: Path, mode: int) -> None:
    file = key_file(tmp_path / "keys", NEW, mode=mode)
    with pytest.raises(SecretsFileInvalid, match=rf"others may read or change {file}; chmod 600"):
        SecretStore.load(file)


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "is empty"), (b"MARKER\n", "each line must be a key"), (b"\xff", "no text")]
)
def test_a_file_that_holds_no_keys_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "keys"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
        out.write(content)
    with pytest.raises(SecretsFileInvalid, match=said) as raised:
        SecretStore.load(file)
    assert str(file) in str(raised.value)
    assert "MARKER" not in str(raised.value)
    with pytest.raises(SecretsFileInvalid, match="No such file"):
        SecretStore.load(tmp_path / "missing")


def test_the_representation_holds_no_key() -> None:
    assert OLD not in repr(store(OLD)) + str(vars(store(OLD)))
