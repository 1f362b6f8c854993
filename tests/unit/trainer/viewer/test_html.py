"""The page is one file that loads nothing, and a result can put nothing into it but text."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from tests.support.finished_rollouts import decode, forked, rollout, sample, turn

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, RolloutStatus
from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_trainer.viewer.html import LARGE, rollout_page

VOID = {"meta", "input", "br", "wbr"}
EVIL = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)></span></style>"
    "<!--]]>${title}$style&lt;\x1b[31m\u202e\x00\u2028[bold]⟦x⟧"
)


class Page(HTMLParser):
    """The elements of a page with their attributes and text; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def shape(self) -> list[tuple[str, list[str]]]:
        """Every element with the names of its attributes; tokens, of which there are as many as text, left out."""
        return [(tag, list(attributes)) for tag, attributes in self.elements if tag != "i"]

    def runs(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if "data-ids" in attributes]

    def text(self) -> str:
        return "".join(data for parent, data in self.texts if parent not in ("style", "script"))


def saying(said: str) -> RolloutResult:
    """A rollout that says this wherever a result has room for text."""
    call = ToolCall(id=said, function=FunctionCall(name=said, arguments=said))
    one = sample(said, ("sampled", said, 1), ("glue", said, 1))
    segments = [s.model_copy(update={"kind": f"{s.kind} trained {said}", "policy_version": said}) for s in one.segments]
    return rollout(
        one.model_copy(update={"segments": segments}),
        uid=said,
        rollout_id=said,
        batch_id=said,
        group=said,
        labels={said: said},
        messages=[
            Message(role="user", content=said),
            Message(role="user", content=[{"type": "text", "text": said}]),
            Message(role="assistant", content=None, tool_calls=[call]),
            Message(role="tool", content=said, tool_call_id=said),
        ],
        status=RolloutStatus.FAILED,
        failure=Failure(
            kind=FailureKind.INFRA,
            boundary=Boundary.TRAINER,
            category=Category.NETWORK_ERROR,
            message=said,
            retryable=True,
        ),
        drift={said: 1},
        warnings=[said],
        turns=[turn(1, said, policy_version=said, finish_reason=said)],
        worker=said,
        tokenizer={said: said},
    )


def test_a_run_carries_what_is_known_of_its_tokens() -> None:
    first, second, *_ = Page(rollout_page(rollout(sample("é", ("sampled", "日b", 1), policy="v3")), decode)).runs()
    assert first == {
        "class": "run prompt",
        "title": "prompt, mask 0, 2 tokens",
        "data-kind": "prompt",
        "data-mask": "0",
        "data-start": "0",
        "data-ids": "195,169",
    }
    assert second == {
        "class": "run sampled trained",
        "title": "sampled, mask 1, 4 tokens, turn 1, policy v3",
        "data-kind": "sampled",
        "data-mask": "1",
        "data-start": "2",
        "data-turn": "1",
        "data-policy": "v3",
        "data-ids": "230,151,165 98",
        "data-logprobs": "-0.5,-0.5,-0.5 -0.5",
    }


def test_every_token_is_there_once_and_in_order() -> None:
    result = forked()
    ids = [int(i) for run in Page(rollout_page(result, decode)).runs() for i in re.split("[ ,]", run["data-ids"] or "")]
    assert ids == [token for one in result.samples for token in (*one.prompt_ids, *one.response_ids)]


def test_counts_forks_drift_and_failures_are_named() -> None:
    result = forked(warnings=["zero_logprobs"])
    text = Page(rollout_page(result, decode, note="the text may be wrong")).text()
    trained = sum(sum(one.response_mask) for one in result.samples)
    total = sum(len(one.prompt_ids) + len(one.response_ids) for one in result.samples)
    for said in (
        f"trained {trained} of {total} tokens in 2 samples",
        "9 tokens as in sample 1",
        "↳ fork of 1 ≠ thinking_stripped",
        "≠ thinking_stripped in 1 turn",
        "zero_logprobs",
        "the text may be wrong",
    ):
        assert said in text


def test_a_contradiction_is_no_footnote() -> None:
    wrong = sample("ask", ("glue", "a", 1)).model_copy(update={"response_mask": [1]})
    page = Page(rollout_page(rollout(wrong), decode))
    assert "This record contradicts itself" in page.text()
    assert [run["class"] for run in page.runs()] == ["run prompt", "run glue trained contradicts"]


def test_a_rollout_without_samples_has_a_page() -> None:
    text = Page(rollout_page(rollout(), decode)).text()
    assert "trained 0 of 0 tokens in 0 samples" in text
    assert "no turn was proved" in text


def test_a_long_rollout_is_laid_out_by_need() -> None:
    page = rollout_page(rollout(sample("x" * LARGE, ("sampled", "y", 1))), decode)
    assert '<body class="large">' in page
    assert '<body class="small">' in rollout_page(forked(), decode)


def test_it_loads_nothing_and_names_its_script_and_style_by_hash() -> None:
    page = Page(rollout_page(saying(EVIL), decode))
    (policy,) = (a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")

    def digests(tag: str) -> list[str]:
        texts = [data for parent, data in page.texts if parent == tag]
        return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]

    assert [attributes.get("type") for tag, attributes in page.elements if tag == "script"] == [
        "application/json",
        "module",
    ]
    assert policy is not None
    (_, script), styles = digests("script"), digests("style")
    assert set(policy.split("; ")) == {
        "default-src 'none'",
        f"style-src {' '.join(reversed(styles))}",
        f"script-src {script}",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    }
    names = {name for _, attributes in page.elements for name in attributes}
    assert names.isdisjoint({"src", "href", "action", "style", "srcset", "srcdoc"})


@pytest.mark.parametrize("decoder", [decode, None])
def test_hostile_text_stays_text(decoder: object) -> None:
    text = rollout_page(saying(EVIL), decode if decoder else None)
    page, harmless = Page(text), Page(rollout_page(saying("harmless"), decode))
    assert page.shape() == harmless.shape()
    # Nothing that a terminal, a browser's bidi or a file's encoding would obey is in the file.
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\ud800-\udfff]", text)
    assert "\\x1b[31m\\u202e\\x00\\u2028[bold]" in page.text()
    # What a segment calls itself may not lend it the look of another.
    classes = {run["class"] for run in page.runs()}
    assert classes <= {"run prompt", "run trained contradicts", "run"}
