"""Environments that others have written, in a worker process. Their modules are loaded where one is used."""

from rolloutpool_worker.capability import OpenCapability, WorkerCapability, WorkerDoor
from rolloutpool_worker.settings import WorkerSettings


class OpenForeignEnvironments(OpenCapability):
    """The part of one process: what rollouts of protocol v1 may call."""

    def __init__(self, door: WorkerDoor) -> None:
        """Connects to nothing yet."""
        if door.settings.v1_tool_servers:
            from rolloutpool_worker.capabilities.foreign_environments.tool_servers import ToolServers

            self.tool_servers = ToolServers(door.settings.targets)

    async def close(self) -> None:
        """Closes the connections to them."""
        if self.tool_servers is not None:
            await self.tool_servers.aclose()


class WorkerForeignEnvironments(WorkerCapability):
    """Rollouts act in environments behind servers, and of packages."""

    name = "foreign_environments"
    opened = OpenForeignEnvironments

    def load(self, settings: WorkerSettings) -> None:
        """Registers the environments of the operator's file."""
        if settings.environments_file is not None:
            from rolloutpool_worker.capabilities.foreign_environments.operators_file import load_environments

            load_environments(settings.environments_file, settings.targets)
