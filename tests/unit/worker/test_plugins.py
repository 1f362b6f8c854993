"""A name belongs to whoever took it first."""

import sys
from pathlib import Path

import pytest

from rolloutpool_worker.plugins import NameTaken, PluginBroken, import_plugins


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
