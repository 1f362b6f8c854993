"""What a hostile program can reach in a place of bubblewrap, and what is left of it (Debian: bubblewrap)."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.support.bubblewrap import needs_bubblewrap
from tests.support.certificates import certificate
from tests.support.processes import runs
from tests.support.waiting import until_true

from rolloutpool_worker.capabilities.harness import passage
from rolloutpool_worker.capabilities.harness.passage import MOST_AT_ONCE, PORT
from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime, ProgramEnd, ProgramMissing

pytestmark = needs_bubblewrap


async def ran(
    script: str, hide: Path | None = None, door: str = "http://127.0.0.1:1", network: str | None = None, **env: str
) -> ProgramEnd:
    settings = RunnerSettings(
        redis_url="redis://127.0.0.1:1",
        runner_process="bubblewrap",
        runner_hide=() if hide is None else (str(hide),),
        runner_file_mb=1,
        door_url=door,
        runner_network=network,
    )
    preset = Preset(("bash", "-c", script), env)
    return await ProcessRuntime(settings).run(preset, {"prompt": "p", "url": f"{door.rstrip('/')}/s/b-0", "key": "k"})


PYTHON = Path(sys.executable).resolve()
"""An environment may be below /tmp, of which a program has one of its own."""


class Listener:
    """A server that says back what it is told, with its name in front."""

    def __init__(self, name: str) -> None:
        self.name, self.port = name, 0
        self.told: list[bytes] = []
        self.serving: set[asyncio.Task[None] | None] = set()
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(task := asyncio.current_task())
        try:
            while line := await reader.readline():
                self.told.append(line)
                if line == b"end\n":
                    break
                writer.write(f"{self.name}: ".encode() + line)
            self.ended += 1
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self.serving.discard(task)


@asynccontextmanager
async def listening(name: str, context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
    listener = Listener(name)
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0, ssl=context)
    listener.port = server.sockets[0].getsockname()[1]
    async with server:
        yield listener
        await until_true(lambda: not listener.serving, 10)


ASKS = "{{ exec 3<>/dev/tcp/127.0.0.1/{port}; }} 2>/dev/null && echo hello >&3 && head -n 1 <&3 || echo refused"


async def test_it_reaches_the_door_and_nothing_else() -> None:
    async with listening("door") as door, listening("redis") as redis:
        script = f"{ASKS.format(port=redis.port)}; echo $URL; {ASKS.format(port=PORT)}; exit 7"
        end = await ran(script, door=f"http://127.0.0.1:{door.port}/", URL="{url}")
        assert end.output.splitlines() == ["refused", f"http://127.0.0.1:{PORT}/s/b-0", "door: hello"]
        assert (end.code, redis.told) == (7, [])
        seen = await ran(f"ls /sys/class/net; {ASKS.format(port=redis.port)}", network="host")
        assert seen.output.splitlines()[-1] == "redis: hello"


async def test_what_ends_on_one_side_of_the_way_ends_on_the_other() -> None:
    async with listening("door") as door:
        script = (
            f"exec 3<>/dev/tcp/127.0.0.1/{PORT}; echo one >&3; head -n 1 <&3; exec 3>&-; sleep 0.3; "
            f"exec 4<>/dev/tcp/127.0.0.1/{PORT}; echo end >&4; cat <&4; echo cut"
        )
        end = await ran(script, door=f"http://127.0.0.1:{door.port}")
        assert end.output.split("\n")[:2] == ["door: one", "cut"]
        await until_true(lambda: door.ended == 2, 10)


async def test_large_and_many_words_pass_unchanged() -> None:
    async with listening("door") as door:
        script = (
            f"for i in $(seq 20); do (exec 3<>/dev/tcp/127.0.0.1/{PORT}; "
            "head -c 60000 /dev/zero | tr '\\0' $i >&3; echo >&3; head -n 1 <&3 | wc -c) & done; wait"
        )
        end = await ran(script, door=f"http://127.0.0.1:{door.port}")
        assert end.output.split() == [str(60_000 + len("door: \n"))] * 20


async def test_a_passage_that_ends_takes_its_connections_with_it() -> None:
    async with listening("door") as door:
        async with passage.opened_passage(f"http://127.0.0.1:{door.port}") as way:
            reader, writer = await asyncio.open_unix_connection(way.socket)
            writer.write(b"hello\n")
            assert await reader.readline() == b"door: hello\n"
            before = asyncio.all_tasks()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert {task for task in before if not task.done()} <= {asyncio.current_task(), *door.serving}


async def test_a_program_has_no_more_connections_than_its_runner_can_bear() -> None:
    script = (
        f"import socket; all = [socket.create_connection(('127.0.0.1', {PORT})) for _ in range(MOST + 50)]\n"
        "for one in all: one.sendall(b'hello\\n')\n"
        "said = 0\n"
        "for one in all:\n"
        "    try: said += bool(one.recv(100))\n"
        "    except OSError: pass\n"
        "print(said)"
    ).replace("MOST", str(MOST_AT_ONCE))
    async with listening("door") as door:
        url = f"http://127.0.0.1:{door.port}"
        assert (await ran(f'{PYTHON} -c "{script}"', door=url)).output == f"{MOST_AT_ONCE}\n"
        assert (await ran(ASKS.format(port=PORT), door=url)).output == "door: hello\n"


async def test_a_door_that_is_away_refuses_and_one_with_a_certificate_is_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = await ran(f"{ASKS.format(port=PORT)}; echo goes on", door="http://127.0.0.1:1")
    assert end.output.endswith("goes on\n")
    file, context = certificate("localhost", "127.0.0.1", tmp_path)
    monkeypatch.setattr(passage, "verifying", lambda: ssl.create_default_context(cafile=str(file)))
    async with listening("door", context) as door:
        end = await ran(ASKS.format(port=PORT), door=f"https://localhost:{door.port}")
    assert end.output == "door: hello\n"


async def test_a_program_cannot_be_given_a_network_of_containers() -> None:
    with pytest.raises(ProgramMissing, match="RUNNER_NETWORK"):
        await ran("true", network="bridge")


async def test_it_sees_its_own_processes_and_a_read_only_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    end = await ran(
        f"ls /proc | grep -c '^[0-9]'; cat {tmp_path}/secret; touch /etc/x; touch /tmp/mine && echo own", tmp_path
    )
    processes, *others = end.output.splitlines()
    assert int(processes) < 8
    assert "own" in others
    assert any("No such file" in line for line in others)
    assert any("Read-only file system" in line for line in others)
    assert "mine" not in os.listdir("/tmp")


async def test_it_gets_no_variable_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://secret")
    end = await ran("env", MINE="1")
    names = {line.partition("=")[0] for line in end.output.splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LANG", "HOME", "TMPDIR", "MINE"}


async def test_a_large_file_is_cut_and_its_home_is_deleted() -> None:
    end = await ran("pwd; head -c 5000000 /dev/zero > big; stat -c %s big")
    home, *_, size = end.output.splitlines()
    assert int(size) <= 2**20
    assert Path(home).parent.name not in os.listdir("/tmp")


async def test_what_it_leaves_behind_ends_with_it() -> None:
    """Also what has a session of its own, and when it is cancelled."""
    marker = f"sleep {100_000 + os.getpid()}"
    await ran(f"setsid {marker} & setsid nohup {marker} & echo left")
    assert found(marker) == []
    running = asyncio.ensure_future(ran(f"setsid {marker} & wait"))
    await until_true(lambda: found(marker), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_true(lambda: found(marker) == [], 10)


def found(command: str) -> list[int]:
    """Returns the processes of this machine with this command."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().replace("\0", " ").strip()
            except OSError:
                continue
            if words == command and runs(int(entry.name)):
                pids.append(int(entry.name))
    return pids
