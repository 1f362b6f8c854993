"""The pool's own ids: `b` and 32 hex digits for a batch, the batch's id, `-` and an index for a rollout (its *uid*).

Example: `b0123456789abcdef0123456789abcdef-7` is the eighth rollout of its batch. Callers may give a rollout a name of
their own (`rollout_id`); the two kinds share some paths of the API, which tells them apart by their form.
"""

import re
import uuid

_BATCH_ID = re.compile(r"b[0-9a-f]{32}")
_OURS = re.compile(_BATCH_ID.pattern + r"(-[0-9]+)?")


def new_batch_id() -> str:
    """Makes the id of a new batch."""
    return f"b{uuid.uuid4().hex}"


def is_batch_id(text: str) -> bool:
    """Tells whether a text has the form of a batch's id."""
    return _BATCH_ID.fullmatch(text) is not None


def has_form_of_our_ids(text: str) -> bool:
    """Tells whether a text has the form of a batch's id or of a uid."""
    return _OURS.fullmatch(text) is not None
