"""Plug-ins: tools, agents, termination strategies, environments and graders, found by name.

They come from two places: entry points of installed packages (`rolloutpool.tools`, `rolloutpool.agents`,
`rolloutpool.termination`, `rolloutpool.environments`, `rolloutpool.graders`), and modules that ROLLOUTPOOL_PLUGINS
names, which call `register` when they are imported. Two plug-ins of one name are an error: which of them runs would
depend on the worker.
"""

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_worker.plugin_errors import PluginError

T = TypeVar("T")


class NameTaken(RolloutPoolError):
    """Two plug-ins want the same name; rename one of them."""


class PluginBroken(RolloutPoolError):
    """A plug-in could not be loaded."""


class Registry(Generic[T]):
    """Named things of one kind, in the order of registration."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._things: dict[str, T] = {}

    def register(self, name: str, thing: T) -> T:
        """Adds a thing under a name, and returns it, so that a decorator can.

        Raises:
            NameTaken: Another thing has that name.
            PluginBroken: It is a class, so what it registers could not be called.
        """
        if isinstance(thing, type):
            raise PluginBroken(f"{self.group}: {name!r} is the class {thing.__name__}; register an object of it")
        # The same thing twice is no conflict: an entry point's module is imported to load it, and its decorator has
        # registered the thing by then.
        if self._things.setdefault(name, thing) is not thing:
            raise NameTaken(f"{self.group}: the name {name!r} is taken twice; rename one of them")
        return thing

    def named(self, name: str) -> Callable[[T], T]:
        """Makes a decorator that registers what it decorates under this name."""
        return lambda thing: self.register(name, thing)

    def get(self, name: str) -> T | None:
        """Returns the thing of that name, if there is one."""
        return self._things.get(name)

    def names(self) -> list[str]:
        """Returns all names, in the order of registration."""
        return list(self._things)

    def values(self) -> list[T]:
        """Returns all things, in the order of registration."""
        return list(self._things.values())

    def load_entry_points(self) -> None:
        """Adds what installed packages offer under this group.

        Raises:
            NameTaken: Two of them have one name.
            PluginBroken: One cannot be imported.
        """
        for entry in entry_points(group=self.group):
            try:
                self.register(entry.name, entry.load())
            except RolloutPoolError:
                raise
            except (Exception, SystemExit) as error:
                raise PluginBroken(f"{self.group}: {entry.name} = {entry.value}: {PluginError.of(error)}") from error


def import_plugins(modules: tuple[str, ...]) -> None:
    """Imports modules, which register their plug-ins while they are imported.

    Args:
        modules: Dotted names, from ROLLOUTPOOL_PLUGINS.

    Raises:
        PluginBroken: A module cannot be imported.
        NameTaken: A module registers a name that another thing has.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except RolloutPoolError:
            raise
        except ModuleNotFoundError as error:
            missing = f"no module {error.name!r}"
            if error.name is not None and f"{module}.".startswith(f"{error.name}."):
                missing += "; is the folder in which it lies on PYTHONPATH?"
            raise PluginBroken(f"ROLLOUTPOOL_PLUGINS: {module} cannot be imported: {missing}") from error
        # A module that ends the process would have its worker started again for ever, and nothing would say why.
        except (Exception, SystemExit) as error:
            raise PluginBroken(f"ROLLOUTPOOL_PLUGINS: {module} cannot be imported: {PluginError.of(error)}") from error
