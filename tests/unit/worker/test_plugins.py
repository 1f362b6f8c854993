"""A name belongs to whoever took it first."""

import sys
from pathlib import Path

import pytest

from rolloutpool_worker.plugins import NameTaken, PluginBroken, Registry, import_plugins


def test_things_are_found_by_name_in_the_order_of_registration() -> None:
    registry: Registry[int] = Registry("group")
    assert registry.register("b", 2) == 2
    assert registry.named("a")(1) == 1
    assert (registry.names(), registry.values()) == (["b", "a"], [2, 1])
    assert (registry.get("a"), registry.get("c")) == (1, None)


def test_a_name_is_taken_once_and_the_same_thing_may_come_again() -> None:
    registry: Registry[object] = Registry("group")
    thing = object()
    registry.register("a", thing)
    registry.register("a", thing)
    with pytest.raises(NameTaken, match="group: the name 'a' is taken twice"):
        registry.register("a", object())
    assert registry.get("a") is thing


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin_of_a_test.py").write_text("raise OSError('disk')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginBroken, match="broken_plugin_of_a_test cannot be imported: disk"):
        import_plugins(("broken_plugin_of_a_test",))
    assert "broken_plugin_of_a_test" not in sys.modules
    import_plugins(())


def test_our_own_errors_pass_through_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rival_plugin_of_a_test.py").write_text(
        "from rolloutpool_worker.plugins import NameTaken\nraise NameTaken('mine')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NameTaken, match="mine"):
        import_plugins(("rival_plugin_of_a_test",))
