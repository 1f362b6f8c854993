"""An env server for verifiers and prime-rl (verifiers 0.4.0) whose episodes run in a pool.

    pip install 'verifiers==0.4.0'
    rolloutpool up                                                   # somewhere; its API is POOL_URL
    POOL_URL=http://127.0.0.1:9000 POOL_TOKENIZER=Qwen/Qwen3-8B \\
        python examples/trainers/verifiers_env_server.py tcp://127.0.0.1:5000

Give the address to whoever has an `EnvClient`, in the place of verifiers' own env server. Each request brings a task
and the address of the policy: a vLLM, which the pool's workers ask with ids. Tools and environments are the pool's.
"""

import asyncio
import os
import sys
from typing import Any

from rolloutpool_trainer import FinishedRollout
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.verifiers import PoolEnvServer


def reward(result: FinishedRollout, task: dict[str, Any]) -> float:
    """1 if the task's answer is in the last message; a grader of the pool can say it instead."""
    return float(str(task["answer"]) in str(result.messages[-1].content))


async def main(address: str) -> None:
    """Serves until it is interrupted; says where, once it does."""
    driver = PoolDriver(os.environ["POOL_URL"], defaults={"tokenizer_name": os.environ["POOL_TOKENIZER"]})
    server = PoolEnvServer(driver, address, reward=reward)
    print(server.address, flush=True)
    await server.serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5000"))
