"""How many examples a property gets: few for each change, many with MANY_EXAMPLES=1 (mutants, and `make test-slow`)."""

import os


def examples(few: int, many: int) -> int:
    """Returns one of both."""
    return many if os.environ.get("MANY_EXAMPLES") else few
