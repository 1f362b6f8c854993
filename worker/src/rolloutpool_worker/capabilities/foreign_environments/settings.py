"""The settings of environments that others have written."""

from pathlib import Path

from pydantic import BaseModel


class ForeignEnvironmentSettings(BaseModel):
    """Holds where the operator says which there are."""

    environments_file: Path | None = None
    """The operator's environments, behind servers or of packages, with their addresses and secrets."""
