"""vLLM and SGLang as processes of their own, on CPUs, in the environments that the Makefile makes for them."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import httpx
from tests.support.ports import free_port
from tests.support.waiting import eventually

BUILD = Path(__file__).parents[2] / "build"
TORCH = BUILD / "vllm" / "bin" / "python"
"""A Python that has torch; SGLang's environment borrows it, too."""
START_SECONDS = 300.0
"""vLLM takes 30 s alone on two cores, most of it imports."""


class EngineServer:
    """One engine, which can be killed and started again on its port."""

    protocol: ClassVar[str]
    paths: ClassVar[Sequence[str]]
    """Where it is asked for ids."""

    def __init__(self, model: Path, log: Path, options: Sequence[str] = (), *, key: str | None = None) -> None:
        """Starts it with a folder of weights, and waits until it answers."""
        self._model, self._log, self._options, self._key = model, log, options, key
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _command(self) -> list[str]:
        raise NotImplementedError

    def load(self, weights: Path, version: str) -> None:
        """Gives it other weights, and names them."""
        raise NotImplementedError

    def pause(self, mode: str) -> None:
        """Has it sample nothing more; what becomes of running calls depends on the mode."""
        raise NotImplementedError

    def resume(self) -> None:
        """Has it go on."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        environment = os.environ | {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        host = ["--host", "127.0.0.1", "--port", str(self._port)]
        keyed = [] if self._key is None else ["--api-key", self._key]
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [
                    *self._command(),
                    "--served-model-name",
                    "policy",
                    "--dtype",
                    "float32",
                    *host,
                    *keyed,
                    *self._options,
                ],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def answers() -> bool:
            assert process.poll() is None, f"it has ended: {self.log[-2000:]}"
            try:
                return httpx.get(f"{self.url}/health", trust_env=False, timeout=30).is_success
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

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text(errors="replace")

    @property
    def calls(self) -> int:
        """How many calls for ids it has answered."""
        return sum(self.log.count(f'POST {path} HTTP/1.1" 200') for path in self.paths)


class VllmServer(EngineServer):
    """vLLM, with `/inference/v1/generate`."""

    protocol = "vllm"
    paths: ClassVar[Sequence[str]] = ("/inference/v1/generate",)

    def _command(self) -> list[str]:
        vllm = [str(TORCH.with_name("vllm")), "serve", str(self._model), "--enable-scale-out"]
        return [*vllm, "--logprobs-mode", "processed_logprobs", "--enforce-eager"]

    def load(self, weights: Path, version: str) -> None:
        """See `EngineServer`."""
        self.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}})
        self.ask("/update_weight_version", {"new_version": version})

    def pause(self, mode: str) -> None:
        """See `EngineServer`."""
        self.ask("/pause", mode=mode)

    def resume(self) -> None:
        """See `EngineServer`."""
        self.ask("/resume")


class VllmCompletionsServer(VllmServer):
    """vLLM with `/v1/completions` alone."""

    paths: ClassVar[Sequence[str]] = ("/v1/completions",)

    def _command(self) -> list[str]:
        return [word for word in super()._command() if word != "--enable-scale-out"]


class SglangServer(EngineServer):
    """SGLang with torch's own kernels."""

    protocol = "sglang"
    paths: ClassVar[Sequence[str]] = ("/generate",)

    def _command(self) -> list[str]:
        launcher = str(Path(__file__).with_name("launch_sglang.py"))
        sglang = [str(BUILD / "sglang" / "bin" / "python"), launcher, "--device", "cpu"]
        kernels = ["--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"]
        memory = ["--disable-overlap-schedule", "--max-total-tokens", "40000", "--skip-server-warmup"]
        return [*sglang, "--model-path", str(self._model), *kernels, *memory]

    def load(self, weights: Path, version: str) -> None:
        """See `EngineServer`."""
        self.ask("/update_weights_from_disk", {"model_path": str(weights), "weight_version": version})

    def pause(self, mode: str) -> None:
        """See `EngineServer`."""
        self.ask("/pause_generation", {"mode": mode})

    def resume(self) -> None:
        """See `EngineServer`."""
        self.ask("/continue_generation", {})
