"""A rollout goes on at a trainer that was restarted and has forgotten it: same ids and masks as without a restart."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from tests.support.endpoint_client import FixedTexts
from tests.support.forks import fork
from tests.support.inside_worker import REPLAY, InsideWorker, inside_worker
from tests.support.trainer_script import ADD, ADD_COMPACT

from rolloutpool_common.outcomes import Category, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_common.tokens.arrays import id_digest
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_worker.conversation.callback_policy import past_tokens

QUESTION = [{"role": "system", "content": "You calculate."}, {"role": "user", "content": "Calculate 15 + 23"}]
EXAMPLES = [
    {"role": "user", "content": "Say hi"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "Calculate 15 + 23"},
]
END = "<|im_end|>"
SPOKEN = (f"Well. {ADD}{END}", f"Again.{ADD}\n{ADD}{END}", f"{ADD}{END}", f"It is 38.{END}")
COMPACT = (f"{ADD_COMPACT}{END}", f"Again. {ADD_COMPACT}{END}", f"{ADD_COMPACT}{ADD_COMPACT}{END}", f"It is 38.{END}")

Tamper = Callable[[dict[str, Any]], None]
"""Changes the body of a request that restores a session."""


class Trainer:
    """A trainer whose process, here its app, is restarted before the turns that the test names."""

    def __init__(self, make: Callable[[], CallbackApp], restarts: set[int], tamper: Tamper | None = None) -> None:
        self.make, self.restarts, self.tamper = make, restarts, tamper
        self.apps = [make()]
        self.asked: list[tuple[int, int, int]] = []
        """Which app was asked for which turn, and how it answered."""
        self.bodies: list[dict[str, Any]] = []
        self._restarted: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the app that lives."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.apps[-1](scope, receive, send)
        headers = dict(scope["headers"])
        key = headers[b"idempotency-key"].decode()
        turn = int(key.split("/")[1])
        if turn in self.restarts and key.partition("/2/")[0] not in self._restarted:
            self._restarted.add(key)
            self.apps.append(self.make())
        content = b""
        while (part := await receive())["type"] == "http.request":
            content += part.get("body", b"")
            if not part.get("more_body"):
                break
        self.bodies.append(document := json.loads(content))
        if self.tamper is not None and "restore_session" in document:
            self.tamper(document)
            content = json.dumps(document).encode()

        async def given() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.asked.append((len(self.apps), turn, message["status"]))
            await send(message)

        await self.apps[-1](scope, given, noting)


@pytest.fixture
def serve(tokenizer: ChatTokenizer) -> Callable[..., Any]:
    @contextmanager
    def serving(
        *restarts: int, says: tuple[str, ...] = SPOKEN, tamper: Tamper | None = None, **options: Any
    ) -> Iterator[tuple[Trainer, str]]:
        trainer = Trainer(
            lambda: callback_app(FixedTexts(tokenizer, *says), tokenizer=tokenizer, **options), set(restarts), tamper
        )
        with serve_callback(trainer, [0]) as served:
            yield trainer, served.url

    return serving


async def run(inside: InsideWorker, url: str, **options: Any) -> RolloutResult:
    return await inside.run_one(**{"server_url": url, "messages": QUESTION, "rollout_id": "r", **options})


def same(result: RolloutResult, undisturbed: RolloutResult) -> None:
    """All that is trained is the same, and so is all that says how it came about."""
    assert result.status is RolloutStatus.COMPLETED, result.failure
    assert undisturbed.status is RolloutStatus.COMPLETED, undisturbed.failure
    assert result.samples == undisturbed.samples
    assert (result.alignment, len(result.turns)) == (undisturbed.alignment, len(undisturbed.turns))


@pytest.mark.parametrize("messages", [QUESTION, EXAMPLES], ids=["question", "examples"])
@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
@pytest.mark.parametrize("says", [SPOKEN, COMPACT], ids=["spoken", "compact"])
async def test_a_restarted_trainer_goes_on_with_the_same_ids(
    inside: InsideWorker, serve: Callable[..., Any], keeps_ids: bool, says: tuple[str, ...], messages: Any
) -> None:
    with serve(says=says, keeps_ids=keeps_ids) as (_, url):
        undisturbed = await run(inside, url, messages=messages)
    with serve(2, 3, 4, says=says, keeps_ids=keeps_ids) as (trainer, url):
        result = await run(inside, url, messages=messages)
    same(result, undisturbed)
    for turn in (2, 3, 4):
        answers = [status for app, asked, status in trainer.asked if asked == turn]
        assert answers == [409, 200], "asked once, and once more with the ids"
        session = trainer.apps[turn - 1].get_session("r")
        assert (session.turns, session.before, session.restored, session.mismatches) == (turn, turn - 1, True, 0)
    plain = [body for body in trainer.bodies if "restore_session" not in body]
    assert [len(body["messages"]) for body in plain] == sorted({len(body["messages"]) for body in trainer.bodies})


async def test_worker_and_trainer_restarted_between_all_turns(
    fake_redis: str, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    def app() -> CallbackApp:
        return callback_app(FixedTexts(tokenizer, *COMPACT), tokenizer=tokenizer)

    async with inside_worker(fake_redis, tokenizers) as worker:
        with serve_callback(app(), [0]) as served:
            undisturbed = await run(worker, served.url)
        (uid,) = await worker.submit({"server_url": served.url, "messages": QUESTION, "rollout_id": "again"})
    for records in range(1, 20):
        # A server of its own each time, on the same port.
        with serve_callback(app(), served.ports):
            async with inside_worker(fake_redis, tokenizers) as worker:
                worker.stop_after(records)
                if await worker.take(uid) != "drained":
                    same(await worker.result(uid), undisturbed)
                    return
    raise AssertionError("it never ended")


async def test_a_trainer_that_will_not_be_told_is_asked_twice(inside: InsideWorker, serve: Callable[..., Any]) -> None:
    with serve(2, tamper=lambda document: document.pop("restore_session")) as (trainer, url):
        result = await run(inside, url)
    assert result.failure is not None
    assert result.failure.category is Category.TRAINER_CLIENT_ERROR
    assert trainer.asked == [(1, 1, 200), (2, 2, 409), (2, 2, 409)]


STEPS = [
    {"sample": {}},
    {"run_tools": {}},
    {"sample": {}},
    {"edit": [*QUESTION, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "Go on"}]},
    {"sample": {}},
    {"say": [{"role": "user", "content": "And now?"}]},
    {"sample": {}},
]


@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
async def test_an_edited_history(inside: InsideWorker, serve: Callable[..., Any], keeps_ids: bool) -> None:
    says = (f"{ADD_COMPACT}{END}", f"One.{END}", f"Two.{END}", f"Three.{END}")
    options = {"agent": REPLAY, "metadata": {"steps": STEPS}}
    with serve(says=says, keeps_ids=keeps_ids) as (_, url):
        undisturbed = await run(inside, url, **options)
    with serve(3, 4, says=says, keeps_ids=keeps_ids) as (trainer, url):
        result = await run(inside, url, **options)
    same(result, undisturbed)
    assert [status for _, _, status in trainer.asked] == [200, 200, 409, 200, 409, 200]


async def test_a_fork(inside: InsideWorker, serve: Callable[..., Any]) -> None:
    with serve() as (_, url):
        parent = await run(inside, url)
        (undisturbed,) = await fork(inside, parent, 2, server_url=url)
    with serve(3, 4) as (trainer, url):
        (child,) = await fork(inside, parent, 2, server_url=url)
    same(child, undisturbed)
    assert trainer.asked == [(1, 2, 200), (2, 3, 409), (2, 3, 200), (3, 4, 409), (3, 4, 200)]


def one_id(document: dict[str, Any], place: int, *, covered: bool) -> None:
    """Changes one id, with the digest if that is to be right."""
    past = document["restore_session"]
    past["token_ids"][place] += 1
    if covered:
        past["digest"] = id_digest(past["token_ids"])


def unseen(document: dict[str, Any]) -> None:
    """Changes an id of which parsing makes no difference: white space in a call. The digest alone shows it."""
    past, tokenizer = document["restore_session"], load_tokenizer(str(TINY_TOKENIZER))
    (opens,), (line,), (space,) = (tokenizer.encode(text) for text in ("<tool_call>", "\n", " "))
    place = past["token_ids"].index(opens, past["sampled"][-1][0]) + 1
    assert past["token_ids"][place] == line
    past["token_ids"][place] = space


def other_rollout(document: dict[str, Any]) -> None:
    ids = [*range(300, 340)]
    document["restore_session"] = {"token_ids": ids, "digest": id_digest(ids), "sampled": [[20, 40]]}


def longer_mask(document: dict[str, Any]) -> None:
    document["response_mask"].append(0)


def shifted(document: dict[str, Any]) -> None:
    document["restore_session"]["sampled"][0][0] += 1


ATTACKS: dict[str, tuple[Tamper, int]] = {
    "unseen": (unseen, 409),
    "damaged": (lambda document: one_id(document, -3, covered=False), 409),
    "prompt": (lambda document: one_id(document, 4, covered=True), 409),
    "sampled": (lambda document: one_id(document, -5, covered=True), 409),
    "other": (other_rollout, 409),
    "shifted": (shifted, 409),
    "mask": (longer_mask, 422),
}


@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_is_not_proved_is_refused(
    inside: InsideWorker, serve: Callable[..., Any], attack: str, strict: bool, keeps_ids: bool
) -> None:
    tamper, status = ATTACKS[attack]
    with serve(3, tamper=tamper, strict=strict, keeps_ids=keeps_ids) as (trainer, url):
        result = await run(inside, url)
    assert result.status is RolloutStatus.FAILED
    assert result.failure is not None
    expected = Category.TRAINER_CLIENT_ERROR if status == 409 else Category.MASK_REFUSED
    assert result.failure.category is expected
    assert ("can't restore it" if status == 409 else "response_mask has") in result.failure.message
    restarted = trainer.apps[-1]
    assert (len(restarted.sessions), len(restarted.sampling_log)) == (0, 0)
    assert [answer for app, turn, answer in trainer.asked if turn == 3][:2] == [409, status]


def test_the_ids_end_with_the_last_sampled_one() -> None:
    ledger = TokenLedger()
    ledger.seed([1, 2, 3])
    ledger.append_sampled([10, 11], [-0.5, -0.2], turn=1)
    ledger.append_glue([20], turn=1)
    ledger.append_sampled([12], [-0.1], turn=2, policy_version="1")
    ledger.append_sampled([13], [-0.1], turn=2, policy_version="2", train=False)
    ledger.append_close([9], turn=2)
    past = past_tokens(ledger)
    assert past.token_ids == [1, 2, 3, 10, 11, 20, 12, 13]
    assert past.sampled == [(3, 5), (6, 8)]
    assert past.digest == id_digest(past.token_ids)
    # An edit opens a new sample, of which nothing is sampled yet.
    ledger.accept_echo([1, 7])
    assert past_tokens(ledger).model_dump() == {"token_ids": [], "digest": id_digest([]), "sampled": []}
