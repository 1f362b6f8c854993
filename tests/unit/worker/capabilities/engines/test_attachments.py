"""What an engine says of ids besides log-probabilities: taken in its documented form, and never for other ids."""

import base64
import io
import math
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard
from numpy.typing import NDArray
from tests.support.conversations import spec_of
from tests.support.imitated_engine import experts_of, mask_of

from rolloutpool_common.capabilities.engines.attachments import AttachmentLack
from rolloutpool_common.capabilities.engines.kept import PackedArray
from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.capabilities.engines.api import EngineCall
from rolloutpool_worker.capabilities.engines.attachments import (
    CallAttachment,
    mask_attachment,
    npy_rows,
    raw_rows,
    routed_attachment,
    unpacked,
)
from rolloutpool_worker.capabilities.engines.reply import ReplyReader
from rolloutpool_worker.capabilities.engines.sglang import SglangApi
from rolloutpool_worker.capabilities.engines.vllm import VllmApi

CONTEXT = [11, 12, 13, 5, 6, 9]
"""Three ids of a prompt, and three that were sampled."""
ROUTED, MASK = AttachmentKind.ROUTED_EXPERTS, AttachmentKind.SAMPLING_MASK
UNUSABLE = AttachmentLack.UNUSABLE


def spec(protocol: str, *attach: str, **sampling: Any) -> RolloutSpec:
    return spec_of(protocol=protocol, attach=attach, sampling_params=sampling)


def npy(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def rows(start: int, end: int) -> NDArray[np.int32]:
    return np.array([experts_of(i, CONTEXT[i]) for i in range(start, end)], np.int32)


def opened(array: PackedArray) -> NDArray[Any]:
    return np.frombuffer(zstandard.decompress(array.data), array.dtype).reshape(array.shape)


def call(routed_from: int = 2) -> EngineCall:
    return EngineCall("n", "s", b"11,12,13", 7, "v", 3, routed_from)


class TestNpy:
    @pytest.mark.parametrize("dtype", ["|u1", "<u2", "<i4", "<i8", "|i1"])
    @pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
    def test_what_numpy_writes_is_read(self, dtype: str, version: tuple[int, int]) -> None:
        array = np.arange(5 * 3 * 2).reshape(5, 3, 2).astype(dtype)
        found = npy_rows(npy(array, version))
        assert found is not None
        assert (found.dtype, found.shape, found.row_bytes) == (dtype, (3, 2), 6 * array.itemsize)
        assert np.array_equal(np.frombuffer(found.data, dtype).reshape(5, 3, 2), array)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x93NUMPY",
            b"\x93NUMPY\x01\x00",
            b"\x93NUMPY\x09\x00\x10\x00" + b" " * 16,
            b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 70_000,
            b"\x93NUMPY\x01\x00\x0a\x00" + b"(" * 10,
            b"\x93NUMPY\x01\x00\x02\x00[]" + b" " * 10,
            npy(np.zeros((2, 3, 2), "<f4")),
            npy(np.zeros((2, 3, 2), ">u2")),
            npy(np.zeros(7, "|u1")),
            npy(np.zeros((0, 3, 2), "|u1")),
            npy(np.asfortranarray(np.zeros((2, 3, 2), "|u1"))),
            npy(np.zeros((2, 3, 2), "|u1"))[:-1],
            npy(np.zeros((2, 3, 2), "|u1")) + b"x",
            npy(np.zeros((2, 3), [("a", "<i4"), ("b", "<i4")])),
        ],
        ids=range(15),
    )
    def test_anything_else_is_not(self, data: bytes) -> None:
        assert npy_rows(data) is None

    @pytest.mark.parametrize("value", [None, 7, "é", "====", "AA=A", [1], "not base64!"])
    def test_text_that_is_no_base64(self, value: Any) -> None:
        assert unpacked(value) is None
        assert unpacked(base64.b64encode(b"xy").decode()) == b"xy"


class TestRouted:
    def test_what_was_not_sent_is_said(self) -> None:
        assert routed_attachment(None, None, start=2, sent_from=2, end=5).lacks is AttachmentLack.NOT_SENT
        assert routed_attachment([[1]], None, start=2, sent_from=2, end=5).lacks is UNUSABLE

    def test_rows_without_a_head(self) -> None:
        data = rows(2, 5).tobytes()
        found = raw_rows(data, None, 3)
        assert found is not None
        assert (found.row_bytes, found.shape) == (24, (6,))
        assert raw_rows(data, 24, 99) == found
        for bad in (raw_rows(data, 20, 3), raw_rows(data[:-1], None, 3), raw_rows(b"", None, 3), raw_rows(None, 24, 3)):
            assert bad is None
        assert raw_rows(data, None, 0) is None
        assert raw_rows(b"123456", None, 3) is None


class TestMasks:
    @pytest.mark.parametrize(
        "masks",
        [
            [],
            [[5, 7], [6]],
            [[6], [5, 7], [9]],
            [[5], [6], []],
            [[5], [6], [9, -1]],
            [[5], [6], [9, 2**32]],
            [[5], [6], [9, 1.5]],
            [[5], [6], [9, "2"]],
            [[5], [6], [9, None]],
            [[5], [6], 9],
            {"0": [5]},
            "569",
            7,
        ],
    )
    def test_masks_of_other_ids_are_unusable(self, masks: Any) -> None:
        found = mask_attachment(masks, [5, 6, 9], first=3)
        assert (found.lacks, found.rows, found.arrays) == (UNUSABLE, 0, {})

    @pytest.mark.parametrize("logprobs", [[], [0, 0], [0, 0, None], [0, 0, math.inf], [[0], [0], [0]], "abc", 7])
    def test_so_are_log_probabilities_that_do_not_pair(self, logprobs: Any) -> None:
        assert mask_attachment([[5], [6], [9]], [5, 6, 9], first=3, logprobs=logprobs).lacks is UNUSABLE


def of_vllm(**choice: Any) -> dict[AttachmentKind, CallAttachment]:
    reader = ReplyReader(orjson.dumps({"choices": [choice]}), b"1", "turn 1")
    found = VllmApi(spec("vllm", ROUTED, MASK), []).attachments(reader, call(), [5, 6, 9])
    return {one.kind: one for one in found}


class TestVllm:
    def test_the_documented_form(self) -> None:
        """Base64 of `.npy` bytes, a row for each id but the last; and a list of ids for each sampled id."""
        sent = base64.b64encode(npy(rows(2, 5).astype("|u1"))).decode()
        found = of_vllm(routed_experts=sent, sampling_mask=[mask_of(i) for i in (5, 6, 9)])
        assert [(one.start, one.rows) for one in (found[ROUTED], found[MASK])] == [(2, 3), (3, 3)]
        assert np.array_equal(opened(found[ROUTED].arrays["experts"]), rows(2, 5))
        assert opened(found[MASK].arrays["ids"]).tolist() == [i for token in (5, 6, 9) for i in mask_of(token)]

    def test_the_example_of_its_page_about_sampling_masks(self) -> None:
        document = '{"choices": [{"sampling_mask": [[187, 326, 512], [42, 88], [303, 11, 22]]}]}'
        reader = ReplyReader(document.encode(), b"1", "turn 1")
        (found,) = VllmApi(spec("vllm", MASK), []).attachments(reader, call(), [187, 42, 303])
        assert opened(found.arrays["lengths"]).tolist() == [3, 2, 3]

    def test_an_engine_that_was_started_without_the_flags(self) -> None:
        for found in (of_vllm(), of_vllm(routed_experts=None, sampling_mask=None)):
            assert {one.lacks for one in found.values()} == {AttachmentLack.NOT_SENT}

    @pytest.mark.parametrize("sent", [[[[1]]], "AAAA", 7, {}])
    def test_other_forms_are_unusable(self, sent: Any) -> None:
        assert of_vllm(routed_experts=sent)[ROUTED].lacks is UNUSABLE


def of_sglang(api: SglangApi, **meta: Any) -> dict[AttachmentKind, CallAttachment]:
    reader = ReplyReader(orjson.dumps({"meta_info": meta}), b"1", "turn 1")
    return {one.kind: one for one in api.attachments(reader, call(), [5, 6, 9])}


def flat(start: int, end: int) -> str:
    return base64.b64encode(rows(start, end).tobytes()).decode()


class TestSglang:
    def test_it_may_say_where_its_rows_begin(self) -> None:
        api = SglangApi(spec("sglang", ROUTED), [])
        found = of_sglang(api, routed_experts=flat(1, 5), routed_experts_start_len=1)[ROUTED]
        assert np.array_equal(opened(found.arrays["experts"]), rows(2, 5).reshape(3, 6))
        assert of_sglang(api, routed_experts=flat(3, 5), routed_experts_start_len=3)[ROUTED].lacks is UNUSABLE

    def test_masks_come_with_the_log_probabilities_among_them(self) -> None:
        masks = [mask_of(i) for i in (5, 6, 9)]
        sent = {"output_token_sampling_mask": masks, "output_token_sampling_logprobs": [-1.0, -0.5, 0.0]}
        found = of_sglang(SglangApi(spec("sglang", MASK), []), **sent)[MASK]
        assert opened(found.arrays["logprobs"]).tolist() == [-1.0, -0.5, 0.0]
        assert opened(found.arrays["lengths"]).tolist() == list(map(len, masks))


def test_a_batch_may_not_set_what_the_channel_sets() -> None:
    with pytest.raises(RequestFault, match="routed_experts_prompt_start"):
        VllmApi(spec("vllm", routed_experts_prompt_start=3), [])
