"""A name belongs to whoever took it first."""

import sys
from pathlib import Path

import pytest

from rolloutpool_worker.plugins import NameTaken, PluginBroken, Registry, import_plugins


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("raise OSError('disk')", PluginBroken, r"cannot be imported: OSError: disk \(plugin_of_a_test.py:1 in"),
        # Its worker would be started again for ever, and say nothing.
        ("import sys\nsys.exit(3)", PluginBroken, r"SystemExit: 3 \(plugin_of_a_test.py:2 in"),
        ("import a_library_of_no_one", PluginBroken, r"no module 'a_library_of_no_one'$"),
        ("from rolloutpool_worker.plugins import NameTaken\nraise NameTaken('mine')", NameTaken, "mine"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_and_our_own_errors_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: type[Exception], says: str
) -> None:
    (tmp_path / "plugin_of_a_test.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(error, match=says):
        import_plugins(("plugin_of_a_test",))
    assert "plugin_of_a_test" not in sys.modules


def test_a_module_that_is_not_there_is_told_from_one_that_it_lacks() -> None:
    with pytest.raises(PluginBroken, match="no module 'nowhere_of_a_test'; is the folder"):
        import_plugins(("nowhere_of_a_test.tools",))
    import_plugins(())


def test_a_class_in_the_place_of_an_object_is_refused() -> None:
    """It would be called with arguments that it takes for its own, in the middle of each rollout."""
    registry: Registry[object] = Registry("rolloutpool.environments")
    with pytest.raises(PluginBroken, match=r"rolloutpool.environments: 'maze' is the class Maze; register an object"):
        registry.register("maze", type("Maze", (), {}))
    assert registry.names() == []
