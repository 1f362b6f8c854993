"""vLLM as a process of its own, on CPUs, in the environment that `make test-vllm` makes."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
from tests.support.ports import free_port
from tests.support.waiting import eventually

ENVIRONMENT = Path(__file__).parents[2] / "build" / "vllm"
PYTHON = ENVIRONMENT / "bin" / "python"
START_SECONDS = 300.0
"""It takes 30 s alone on two cores, most of it imports."""


class VllmServer:
    """One `vllm serve`, which can be killed and started again on its port."""

    def __init__(self, model: Path, log: Path, options: Sequence[str] = (), *, key: str | None = None) -> None:
        """Starts it with a folder of weights, and waits until it answers."""
        self._model, self._log, self._options, self._key = model, log, options, key
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        command = [
            *(str(PYTHON.with_name("vllm")), "serve", str(self._model)),
            *("--served-model-name", "policy", "--logprobs-mode", "processed_logprobs", "--dtype", "float32"),
            *("--host", "127.0.0.1", "--port", str(self._port), "--enforce-eager", *self._options),
        ]
        environment = os.environ | {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            **({} if self._key is None else {"VLLM_API_KEY": self._key}),
        }
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

        def answers() -> bool:
            assert process.poll() is None, f"vLLM has ended: {self._log.read_text()[-2000:]}"
            try:
                return httpx.get(f"{self.url}/health", trust_env=False).is_success
            except httpx.TransportError:
                return False

        eventually(answers, seconds=START_SECONDS)

    def kill(self) -> None:
        """Kills it and the processes of its engine."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ask(self, path: str, document: object = None, **query: str) -> httpx.Response:
        """Posts one of its own questions or orders."""
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        reply = httpx.post(
            f"{self.url}{path}", json=document, params=query, headers=headers, timeout=120, trust_env=False
        )
        reply.raise_for_status()
        return reply

    def load(self, weights: Path, version: str) -> None:
        """Gives it other weights, and names them."""
        self.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}})
        self.ask("/update_weight_version", {"new_version": version})

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text(errors="replace")
