"""Attachments on the wire: numbers come back as they were sent, and their ids are known again."""

import base64

import numpy as np
from pydantic import TypeAdapter

from rolloutpool_common.capabilities.engines.attachments import (
    AttachedArray,
    AttachedPiece,
    RolloutAttachments,
)
from rolloutpool_common.capabilities.engines.wire import AttachmentKind


def test_an_array_travels_in_base64_and_reads_as_numpy_says() -> None:
    # The bytes whose base64 has `+` and `/`.
    experts = np.array([0xFBFF, 0xEFBE] * 12, dtype="<u2").reshape(4, 3, 2)
    array = AttachedArray(dtype=experts.dtype.str, shape=[4, 3, 2], data=experts.tobytes())
    piece = AttachedPiece(
        kind=AttachmentKind.ROUTED_EXPERTS, turn=1, first=3, n=2, digest="d", start=0, rows=4, arrays={"experts": array}
    )
    text = RolloutAttachments(uid="b-0", pieces=[piece]).model_dump_json()
    assert base64.b64encode(experts.tobytes()).decode() in text
    assert "/" in text
    (again,) = TypeAdapter(RolloutAttachments).validate_json(text).pieces
    assert again == piece
    found = again.arrays["experts"]
    assert np.array_equal(np.frombuffer(found.data, found.dtype).reshape(found.shape), experts)
