"""An environment with tools of its own: a scripted policy looks into boxes until it has found the ball.

    python examples/tool_environment.py

The environment lives in the workers, which import this file as a plug-in. Its tools are part of the prompt.
"""

import json
from pathlib import Path
from typing import Any

from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_worker.environments import ENVIRONMENTS, Environment, OpenedSession, SessionScore, StepAnswer

BOX = {"type": "object", "properties": {"box": {"type": "integer", "minimum": 1}}, "required": ["box"]}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks into a box.", "parameters": BOX}}


class Boxes(Environment):
    """A ball is in one of the boxes; each look is a call."""

    crash = CrashEffect.RESTARTABLE  # the same looks see the same, so they can be played again

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Hides the ball."""
        session = {"ball": task["ball"], "found": False}
        return OpenedSession(session, [{"role": "user", "content": "Find the ball."}], tools=[LOOK])

    async def call(self, session: dict[str, Any], name: str, arguments: dict[str, Any]) -> StepAnswer:
        """Says what is in a box; arguments have been checked against the tool's schema."""
        session["found"] = arguments["box"] == session["ball"]
        said = "the ball" if session["found"] else "nothing"
        return StepAnswer(said, reward=1.0 if session["found"] else -0.1, done=session["found"])

    async def score(self, session: dict[str, Any], transcript: Any) -> SessionScore:
        """It is worth 1 to find it."""
        return SessionScore(float(session["found"]))


ENVIRONMENTS.register("boxes", Boxes())


def main() -> None:
    """Plays two games, and prints what each was worth, and each turn of it."""
    from rolloutpool_common.rendering import load_tokenizer
    from rolloutpool_rl.turn_rewards import turn_rewards
    from rolloutpool_trainer import GenerateParams, Generation, LocalPool, callback_app, serve_callback

    tokenizer = load_tokenizer("rolloutpool/tiny")

    async def policy(prompt_ids: list[int], params: GenerateParams) -> Generation:
        call = json.dumps({"name": "look", "arguments": {"box": params.turn}})
        ids = [*tokenizer.encode(f"<tool_call>\n{call}\n</tool_call>"), *tokenizer.closing]
        return Generation(token_ids=ids, logprobs=[-0.5] * len(ids))

    env = {"ROLLOUTPOOL_PLUGINS": Path(__file__).stem, "PYTHONPATH": str(Path(__file__).parent)}
    with (
        LocalPool(workers=1, flower=False, env=env) as pool,
        pool.client() as client,
        serve_callback(callback_app(policy, tokenizer=tokenizer), ports=[0]) as trainer,
    ):
        prompt = [{"role": "system", "content": "Call a tool each turn."}]
        games = [{"messages": prompt, "environment": {"name": "boxes", "task": {"ball": ball}}} for ball in (1, 3)]
        batch = client.submit(games, defaults={"tokenizer_name": tokenizer.name}, trainer=trainer.urls)
        for rollout in batch.results(timeout=60):
            print(f"{rollout.num_tool_calls} looks -> reward {rollout.reward}, after each turn {turn_rewards(rollout)}")


if __name__ == "__main__":
    main()
