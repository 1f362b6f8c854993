"""Plays recorded conversations through a pool, so that supervised data has masks and tokens as rollouts have.

    demonstrations = Demonstrations(conversations, tokenizer, tools=tools)
    with serve_callback(demonstrations.app(), ports=[0]) as trainer:
        defaults = {"tokenizer_name": tokenizer.name}
        batch = client.submit(demonstrations.rollouts, defaults=defaults, trainer=trainer.urls)
        demonstrations.play(batch)
        results = list(batch.results())

1. Each assistant message becomes the ids that the template writes for it, from the generation prompt to the id that
   closes the turn. These ids are what the policy "samples".
2. `play` is the agent of each conversation, at the pool's door: it asks for a turn, gets the recorded one, and appends
   what was recorded behind it, results of tools included. So no tool runs, and a recorded result is the context.
3. The pool does what it does to any rollout: it renders the deltas, proves each prompt, and gives back samples whose
   mask is 1 on the assistant's ids. Log-probabilities are 0.0, because nothing else could have been sampled; results
   warn of that (`zero_logprobs`).

Where a template shows earlier turns otherwise than the last one, for example without their thoughts, a rollout keeps
the ids that were sampled, and so does a demonstration.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from pydantic import ValidationError

from rolloutpool_common.protocol.messages import Message, message_fault
from rolloutpool_common.rendering import ChatTokenizer, TemplateRefused
from rolloutpool_trainer.client.sync_batch import Batch
from rolloutpool_trainer.client.transport import connection_settings
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.errors import DemonstrationRefused

VERSION = "demonstration"
"""The policy version of what nobody sampled."""
_LINES = ("main", "continuation", "child", "side")
"""One turn without tools would count as a title or a summary otherwise."""
_CALL_SECONDS = 660.0
_LONGEST = 32_768
"""Ids of a turn that may be asked for; recorded turns are as long as they are."""


class Demonstrations:
    """Recorded conversations, as a policy and as the agents that ask it."""

    def __init__(
        self,
        conversations: Sequence[Sequence[Mapping[str, Any]]],
        tokenizer: ChatTokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Renders all turns.

        Args:
            conversations: Lists of messages in OpenAI's form, with the assistant's among them. What follows the last
                assistant message is left out.
            tokenizer: The one that the rollouts name.
            tools: Definitions in OpenAI's form, as the prompts show them.
            template_kwargs: For the chat template.

        Raises:
            DemonstrationRefused: A conversation has no prompt or no turn, two turns follow each other, or the template
                does not append a turn to its prompt, or leaves some of it out. The message says which one.
        """
        self._tokenizer = tokenizer
        self._tools = [dict(tool) for tool in tools or ()] or None
        self._kwargs = dict(template_kwargs or {})
        self._turns: list[list[list[int]]] = []
        """Of each conversation, the ids of its turns."""
        self._messages: dict[str, Message] = {}
        """The recorded message of each turn's text."""
        self._conversations = [[dict(message) for message in messages] for messages in conversations]
        for number, messages in enumerate(self._conversations):
            try:
                self._turns.append(self._rendered(messages))
            except ValidationError as error:
                raise DemonstrationRefused(f"conversation {number}: {message_fault(error)}") from error
            except (DemonstrationRefused, TemplateRefused) as error:
                raise DemonstrationRefused(f"conversation {number}: {error}") from error

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        """What to submit: a rollout for each conversation, in their order."""
        return [
            {
                "rollout_id": f"{VERSION}-{number}",
                "messages": messages[: _places(messages)[0]],
                "sampling_params": {"max_tokens": _LONGEST},
                "template_kwargs": self._kwargs,
                "harness": {"external": True, "train": list(_LINES), "max_calls": max(len(turns), 1)},
            }
            for number, (messages, turns) in enumerate(zip(self._conversations, self._turns, strict=True))
        ]

    def app(self, **options: Any) -> CallbackApp:
        """Makes the endpoint that gives the recorded turns.

        Args:
            options: Further arguments of `callback_app`, such as `api_key`.
        """
        return callback_app(
            self._generate,
            tokenizer=self._tokenizer,
            parse=self._parse,
            template_kwargs=self._kwargs,
            policy_version=VERSION,
            **options,
        )

    def play(self, batch: Batch, *, at_once: int = 16) -> None:
        """Plays all conversations to their ends, which takes a pool with a door.

        Args:
            batch: Of `rollouts`.
            at_once: How many conversations at the same time.

        Raises:
            DemonstrationRefused: The pool has answered another turn than the recorded one, or none. All conversations
                are over then; those that failed are no samples.
        """
        with ThreadPoolExecutor(at_once) as threads:
            playing = [threads.submit(self._play, batch, number) for number in range(len(self._conversations))]
        for one in playing:
            one.result()

    def _play(self, batch: Batch, number: int) -> None:
        try:
            self._talk(batch, number)
        except Exception as error:
            batch.end_session(number, failed=f"{type(error).__name__}: {error}"[:500])
            raise
        batch.end_session(number)

    def _talk(self, batch: Batch, number: int) -> None:
        messages, session = self._conversations[number], batch.session(number)
        history: list[dict[str, Any]] = []
        with httpx.Client(**connection_settings(session.url, session.key), timeout=_CALL_SECONDS) as http:
            for place, message in enumerate(messages[: _places(messages)[-1] + 1]):
                if message["role"] != "assistant":
                    history.append(_answering(message, history))
                    continue
                asked = {"model": VERSION, "messages": history, **({"tools": self._tools} if self._tools else {})}
                answer = http.post("/v1/chat/completions", json=asked)
                if not answer.is_success:
                    said = answer.text[:300]
                    raise DemonstrationRefused(
                        f"conversation {number}, message {place}: the door answered {answer.status_code}: {said}"
                    )
                # What the pool has answered is sent back, as a program does it.
                history.append(answer.json()["choices"][0]["message"])

    def _generate(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        number = int(params.rollout_id.rpartition("-")[2])
        # The turn's number would do, unless a program asked for one twice.
        turn = sum(message["role"] == "assistant" for message in params.messages)
        ids = self._turns[number][turn]
        return Generation(token_ids=ids, logprobs=[0.0] * len(ids))

    def _parse(self, text: str) -> Message:
        return self._messages[text]

    def _rendered(self, messages: list[dict[str, Any]]) -> list[list[int]]:
        """Renders the turns of a conversation, and notes what each says."""
        places = _places(messages)
        if not places or places[0] == 0:
            raise DemonstrationRefused("it must have a prompt, and an assistant message behind it")
        turns = []
        for place in places:
            if messages[place - 1].get("role") == "assistant":
                raise DemonstrationRefused(f"message {place} is the assistant's, and so is the one before it")
            ids = self._turn(messages[:place], messages[place])
            turns.append(ids)
            said = self._tokenizer.decode(ids[:-1] if ids[-1] in self._tokenizer.stop_ids else ids)
            self._messages[said] = _normal(messages[place], f"{place:03x}{len(self._turns) % 16**6:06x}")
        return turns

    def _turn(self, before: list[dict[str, Any]], message: dict[str, Any]) -> list[int]:
        """The ids that the template writes for a turn, with the one that closes it."""
        how: dict[str, Any] = {"tools": self._tools, "template_kwargs": self._kwargs}
        prompt = self._tokenizer.render_text(before, **how)
        whole = self._tokenizer.render_conversation([*before, message], **how).text
        close = self._tokenizer.close_token
        if not whole.startswith(prompt):
            raise DemonstrationRefused(f"the template writes message {len(before)} otherwise than behind its prompt")
        text = whole[len(prompt) :]
        # Templates drop in silence what they have no place for; then it would not be learned.
        said = [message.get("content"), message.get("reasoning_content")]
        said += [call["function"]["name"] for call in message.get("tool_calls") or ()]
        if lost := [one for one in said if isinstance(one, str) and one.strip() not in text]:
            raise DemonstrationRefused(f"the template leaves out what message {len(before)} says: {lost[0][:60]!r}")
        end = text.rfind(close) if close else -1
        if end < 0:
            raise DemonstrationRefused(f"the template closes message {len(before)} with no token of its own")
        return self._tokenizer.encode(text[: end + len(close or "")])


def _places(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where the assistant's messages are."""
    return [place for place, message in enumerate(messages) if message.get("role") == "assistant"]


def _normal(message: Mapping[str, Any], name: str) -> Message:
    """A recorded turn as a policy's message: each call has an id, and arguments that are text."""
    calls = []
    for number, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"].get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        # Nine digits, as some templates want them.
        known = call.get("id") or f"{(int(name, 16) + number * 16**5) % 16**9:09x}"
        function = {"name": call["function"]["name"], "arguments": text}
        calls.append({"id": known, "type": "function", "function": function})
    return Message.model_validate({**message, "tool_calls": calls or None})


def _answering(message: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A recorded message that is no turn; a tool's result names the call that it answers."""
    found = dict(message)
    if found["role"] != "tool":
        return found
    place = next((n for n in reversed(range(len(history))) if history[n]["role"] == "assistant"), None)
    calls = [] if place is None else history[place].get("tool_calls") or []
    results = 0 if place is None else len(history) - place - 1
    if results < len(calls):
        found["tool_call_id"] = calls[results]["id"]
    return found
