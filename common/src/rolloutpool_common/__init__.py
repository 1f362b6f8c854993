"""What all sides of rolloutpool agree on.

The base install needs pydantic alone. Redis lives behind the extra `store`, Celery behind `broker`,
tokenizers behind `rendering`, logging and settings behind `service`.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("rolloutpool-common")
