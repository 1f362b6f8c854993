"""A name belongs to whoever took it first."""

import sys
from pathlib import Path

import pytest

from rolloutpool_worker.plugins import NameTaken, PluginBroken, Registry, import_plugins


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin_of_a_test.py").write_text("raise OSError('disk')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginBroken, match=r"cannot be imported: OSError: disk \(broken_plugin_of_a_test.py:1 in"):
        import_plugins(("broken_plugin_of_a_test",))
    assert "broken_plugin_of_a_test" not in sys.modules
    import_plugins(())


def test_a_module_that_ends_the_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker would be started again for ever, and say nothing."""
    (tmp_path / "leaving_plugin_of_a_test.py").write_text("import sys\nsys.exit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginBroken, match=r"SystemExit: 3 \(leaving_plugin_of_a_test.py:2 in"):
        import_plugins(("leaving_plugin_of_a_test",))


def test_a_module_that_is_not_there_is_told_from_one_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking_plugin_of_a_test.py").write_text("import a_library_of_no_one")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginBroken, match=r"no module 'a_library_of_no_one'$"):
        import_plugins(("lacking_plugin_of_a_test",))
    with pytest.raises(PluginBroken, match="no module 'nowhere_of_a_test'; is the folder"):
        import_plugins(("nowhere_of_a_test.tools",))


def test_a_class_in_the_place_of_an_object_is_refused() -> None:
    """It would be called with arguments that it takes for its own, in the middle of each rollout."""
    registry: Registry[object] = Registry("rolloutpool.environments")
    with pytest.raises(PluginBroken, match=r"rolloutpool.environments: 'maze' is the class Maze; register an object"):
        registry.register("maze", type("Maze", (), {}))
    assert registry.names() == []


def test_our_own_errors_pass_through_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rival_plugin_of_a_test.py").write_text(
        "from rolloutpool_worker.plugins import NameTaken\nraise NameTaken('mine')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NameTaken, match="mine"):
        import_plugins(("rival_plugin_of_a_test",))
