"""An engine that counts: chat completions as vLLM gives them with `return_token_ids`, ids being the bytes of the text.

    python -m benchmarks.peers.counting_engine SECONDS

Prints its port. Each answer takes so many seconds, and says how many assistant messages there were before it.
"""

import json
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """Returns what vLLM would answer."""
    said = "".join(f"<{message['role']}>{message['content']}" for message in body["messages"])
    text = str(sum(message["role"] == "assistant" for message in body["messages"]))
    prompt, sampled = list(f"{said}<assistant>".encode()), list(text.encode())
    entries = [{"token": f"token_id:{one}", "logprob": -0.1, "bytes": [one], "top_logprobs": []} for one in sampled]
    choice = {
        **{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}},
        **{"token_ids": sampled, "logprobs": {"content": entries}},
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 1, "total_tokens": len(prompt) + 1}
    about = {"id": "x", "object": "chat.completion", "created": 0, "model": "default", "usage": usage}
    return {**about, "choices": [choice], "prompt_token_ids": prompt}


class JsonHandler(BaseHTTPRequestHandler):
    """One connection of a scripted model."""

    protocol_version = "HTTP/1.1"

    def body(self) -> dict[str, Any]:
        """Reads what was sent."""
        read: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return read

    def send(self, answer: dict[str, Any]) -> None:
        """Answers."""
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Handler(JsonHandler):
    """One connection of the engine."""

    def do_GET(self) -> None:
        """Lists the model."""
        self.send({"object": "list", "data": [{"id": "default", "object": "model"}]})

    def do_POST(self) -> None:
        """Answers a call."""
        body = self.body()
        time.sleep(float(sys.argv[1]))
        self.send(completion(body))


def main() -> None:
    """Serves until it is killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
