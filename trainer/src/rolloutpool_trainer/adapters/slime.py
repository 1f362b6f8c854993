"""For slime and miles: a rollout function that runs whole batches in a pool (read from slime 624b824a8, miles 0.0.2).

    # my_rollout.py, for --rollout-function-path my_rollout.generate_rollout
    generate_rollout = rollout_function(PoolDriver(url, trainer=…), reward)

Samples of one rollout share `rollout_id`, so that slime's loss averages inside it. A group in which a rollout failed
by the infrastructure is marked `aborted` and goes back to the data source; it is never a sample with reward 0. Which
turn a token belongs to has no place. The `Sample` of miles 0.0.2 has no `rollout_id`, so there each sample of a fork
counts by itself.
Evaluation stays with slime's own function: it has another input.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rolloutpool_rl.export import slime_samples
from rolloutpool_trainer.adapters.driver import PoolDriver, conversation, is_sample
from rolloutpool_trainer.client.results import FinishedRollout

MOST_ROUNDS = 4
"""How often the data source is asked for groups in the place of aborted ones."""


def rollout_function(
    driver: PoolDriver,
    reward: Callable[[FinishedRollout], float],
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
    output_type: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Makes a `generate_rollout(args, rollout_id, data_source, evaluation=False)`.

    Args:
        driver: Its `trainer` is where slime's engines, or an endpoint in front of them, answer.
        reward: Of a rollout.
        decode: Makes the text of a response, for what reads it.
        output_type: What is returned, `(samples=groups, metrics=…)`; None takes slime's `RolloutFnTrainOutput`, or
            miles' where there is no slime.
    """

    def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
        if evaluation:
            raise NotImplementedError("give slime's own function for evaluation: --eval-function-path")
        groups: list[list[Any]] = []
        wanted, aborted = args.rollout_batch_size, 0
        for _ in range(MOST_ROUNDS):
            if len(groups) >= wanted:
                break
            for group, results in _run(driver, args, data_source.get_samples(wanted - len(groups))):
                if all(map(is_sample, results)):
                    groups.append(_filled(group, results, reward, decode))
                    continue
                aborted += 1
                for sample in group:
                    sample.status = type(sample).Status("aborted")
                data_source.add_samples([group])
        make = output_type or _train_output()
        return make(samples=groups, metrics={"pool/groups_aborted": aborted})

    return generate_rollout


def _run(driver: PoolDriver, args: Any, groups: list[list[Any]]) -> list[tuple[list[Any], list[FinishedRollout]]]:
    sampling = {
        "temperature": args.rollout_temperature,
        "top_p": args.rollout_top_p,
        "max_tokens": args.rollout_max_response_len,
    }
    items = [
        {"messages": conversation(sample.prompt), "group": str(number), "sampling_params": sampling}
        for number, group in enumerate(groups)
        for sample in group
    ]
    results = iter(driver.run_blocking(items))
    return [(group, [next(results) for _ in group]) for group in groups]


def _filled(
    group: list[Any],
    results: list[FinishedRollout],
    reward: Callable[[FinishedRollout], float],
    decode: Callable[[Sequence[int]], str] | None,
) -> list[Any]:
    """Makes slime's samples of a group; those of one rollout share the `rollout_id` of the sample that asked for it."""
    filled = []
    for sample, result in zip(group, results, strict=True):
        for fields in slime_samples(result, reward(result), group_index=sample.group_index, decode=decode):
            own = {"index": sample.index, "rollout_id": sample.index, "prompt": sample.prompt}
            filled.append(type(sample).from_dict({**fields, **own}))
    return filled


def _train_output() -> Callable[..., Any]:
    try:
        from slime.rollout.base_types import RolloutFnTrainOutput
    except ImportError:
        from miles.rollout.base_types import RolloutFnTrainOutput

    return RolloutFnTrainOutput  # type: ignore[no-any-return]
