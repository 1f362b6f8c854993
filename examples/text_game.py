"""An environment with state and a reward: a scripted policy halves the interval until it has found the number.

    python examples/text_game.py

The environment lives in the workers, which import this file as a plug-in.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_worker.environments import ENVIRONMENTS, Environment, OpenedSession, SessionScore, StepAnswer


class Guess(Environment):
    """Guess a number; each message is a guess."""

    crash = CrashEffect.RESTARTABLE  # the number follows from the seed, so the same guesses can be played again
    by_text = True

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Draws the number."""
        session = {"number": random.Random(seed).randint(1, task["most"]), "guesses": 0, "right": False}
        return OpenedSession(session, messages=[{"role": "user", "content": f"Guess a number up to {task['most']}."}])

    async def step(self, session: dict[str, Any], text: str) -> StepAnswer:
        """Says whether the guess is right, and ends the episode if it is."""
        number = int("".join(filter(str.isdigit, text)) or 0)
        session["guesses"] += 1
        session["right"] = number == session["number"]
        said = "right" if session["right"] else "too low" if number < session["number"] else "too high"
        return StepAnswer(said, done=session["right"])

    async def score(self, session: dict[str, Any], transcript: Sequence[dict[str, Any]]) -> SessionScore:
        """Fewer guesses are better."""
        return SessionScore(1 / session["guesses"] if session["right"] else 0.0, {"guesses": session["guesses"]})


ENVIRONMENTS.register("guess", Guess())


def main() -> None:
    """Plays four games and prints what they were worth."""
    from rolloutpool_common.rendering import load_tokenizer
    from rolloutpool_trainer import LocalPool, callback_app, serve_callback
    from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

    tokenizer = load_tokenizer("rolloutpool/tiny")

    async def policy(prompt_ids: list[int], params: GenerateParams) -> Generation:
        low, high = 1, 100
        for guess, answer in zip(params.messages[2::2], params.messages[3::2], strict=True):
            number = int(guess["content"])
            low, high = (number + 1, high) if answer["content"] == "too low" else (low, number - 1)
        ids = [*tokenizer.encode(str((low + high) // 2)), *sorted(tokenizer.stop_ids)[:1]]
        return Generation(token_ids=ids, logprobs=[-0.5] * len(ids))

    env = {"ROLLOUTPOOL_PLUGINS": Path(__file__).stem, "PYTHONPATH": str(Path(__file__).parent)}
    with (
        LocalPool(workers=1, flower=False, env=env) as pool,
        pool.client() as client,
        serve_callback(callback_app(policy, tokenizer=tokenizer), ports=[0]) as trainer,
    ):
        prompt = [{"role": "system", "content": "Answer with a number."}]
        environments = [{"name": "guess", "task": {"most": 100}, "seed": seed} for seed in range(4)]
        batch = client.submit(
            [{"messages": prompt, "environment": environment} for environment in environments],
            defaults={"tokenizer_name": tokenizer.name},
            trainer=trainer.urls,
        )
        for rollout in batch.results():
            guesses = [str(message.content) for message in rollout.messages if message.role == "assistant"]
            print(*guesses, "-> reward", rollout.environment and rollout.environment.reward)


if __name__ == "__main__":
    main()
