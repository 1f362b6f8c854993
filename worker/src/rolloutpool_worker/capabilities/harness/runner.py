"""Runner: starts the programs of sessions, each in a place of its own.

1. A worker that opens a session whose program is not its owner's says that a place is wanted. The runner that takes it
   has a lease, which it renews. The place's number is in the program's key, so a door refuses the program of an older
   place: a runner that was cut off can't speak any more.
2. A program that ends with 0 ends its session; what it is worth a grader says.
3. One that dies is started again in a fresh place, twice at the most; one whose runner was lost, ten times. Its tools
   must not run twice in the old place, and what it had asked already is answered from the journal, unless the rollout
   says otherwise (`on_death`).
4. A runner whose machine has no room for a program gives the place back, and takes none for a while. Another runner, or
   this one later, starts the program.
5. A lease that is lost, or a rollout that has ended, ends the program. While Redis is away no lease is lost: each
   begins anew when it is back, and until then programs go on, and wait for their doors.
"""

import asyncio
import errno
import secrets
import time
from contextlib import suppress
from typing import Literal

import structlog

from rolloutpool_common.capabilities.harness.keys import make_key
from rolloutpool_common.capabilities.harness.sessions import OpenSession, Sessions, TakenPlace
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.errors import SecretUnreadable
from rolloutpool_common.store import Store, StoreError
from rolloutpool_worker.capabilities.harness.presets import HARNESSES, Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProgramMissing, Runtime, TooManyProcesses

_log = structlog.stdlib.get_logger(__name__)

LEASE_SECONDS = 15.0
RENEW_SECONDS = 3.0
LOOK_SECONDS = 0.5
REST_SECONDS = 15.0
"""After its machine had no room."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
MOST_DEATHS = 2
"""After so many a program is started again."""
MOST_LOSSES = 10
"""So many runners may be lost with it: it need not be its fault, and may be."""


class Runner:
    """Runs programs until it is stopped."""

    def __init__(self, settings: RunnerSettings, store: Store, runtime: Runtime) -> None:
        self._settings = settings
        self._sessions = Sessions(store)
        self._runtime = runtime
        self._running: set[asyncio.Task[None]] = set()
        self._rests_until = 0.0

    async def run(self) -> None:
        """Takes places for as long as it is not cancelled; then its programs end, and go on elsewhere."""
        if deleted := await self._runtime.clear():
            _log.warning("places of runners that were killed were deleted", places=deleted)
        try:
            while True:
                takes = len(self._running) < self._settings.runner_slots and time.monotonic() >= self._rests_until
                place = await self._take() if takes else None
                if place is None:
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
                task = asyncio.create_task(self._serve(place))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        finally:
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(self._running)

    async def _take(self) -> TakenPlace | None:
        try:
            return await self._sessions.take_place(secrets.token_hex(8), LEASE_SECONDS)
        except StoreError as error:
            _log.warning("redis does not answer the runner", error=error.message)
            return None

    async def _serve(self, place: TakenPlace) -> None:
        """Runs one program, as long as the place is this runner's."""
        _log.info("place opened", rollout_uid=place.uid, place=place.number, deaths=place.deaths, losses=place.losses)
        program = asyncio.create_task(self._end_of(place))
        lease = asyncio.create_task(self._hold(place))
        how: SessionEnd | None = None
        try:
            await asyncio.wait({program, lease}, return_when=asyncio.FIRST_COMPLETED)
            if program.done() and program.exception() is None:
                how = program.result()
                _log.info("place closed", rollout_uid=place.uid, place=place.number, again=how is None)
                await self._leave(place, how)
            elif program.done() and isinstance(error := program.exception(), OSError):
                self._rests_until = time.monotonic() + REST_SECONDS
                _log.error("this machine has no room for a program", rollout_uid=place.uid, error=error.strerror)
                await self._leave(place, None, "nothing")
        except asyncio.CancelledError:
            # This runner stops: another one starts the program again, unless it has ended.
            await self._stop(program)
            # Without Redis the lease runs out, and this runner counts as lost.
            with suppress(StoreError):
                await self._sessions.leave_place(place, how, "losses")
            raise
        finally:
            lease.cancel()
            await self._stop(program)

    async def _end_of(self, place: TakenPlace) -> SessionEnd | None:
        """Runs the program; returns how the session ends, None where the program is to be started again."""
        try:
            session = await self._sessions.open(place.uid)
        except SecretUnreadable as error:
            return SessionEnd(failed=f"its runner cannot read its key: {error.message}"[:1000])
        if session is None:
            return SessionEnd()
        choice = session.choice
        if choice.on_death == "fail" and place.deaths + place.losses:
            return SessionEnd(failed="its program, or the runner with it, has died, and it is not started again")
        if place.losses > MOST_LOSSES:
            return SessionEnd(failed=f"its runner was lost {place.losses} times while its program ran")
        try:
            preset = Preset.of(choice)
        except KeyError:
            known = ", ".join(HARNESSES.names())
            return SessionEnd(failed=f"this runner has no preset {choice.preset!r}; it has {known}"[:1000])
        try:
            async with asyncio.timeout(choice.seconds):
                end = await self._runtime.run(preset, self._values(session, place))
        except TimeoutError:
            return SessionEnd(failed=f"its program ran for more than harness.seconds ({choice.seconds:g})")
        except (ProgramMissing, TooManyProcesses) as error:
            return SessionEnd(failed=error.message)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            return SessionEnd(failed=f"its program could not be started: {error.strerror}")
        except ValueError:
            # A prompt with a zero byte, for example.
            return SessionEnd(
                failed="its program could not be started: no process can have such arguments or variables"
            )
        await asyncio.to_thread(self._keep, place, end.output)
        if end.code == 0:
            return SessionEnd()
        if choice.on_death != "fail" and place.deaths < MOST_DEATHS:
            return None
        times = f"the last of {place.number} times that it was started" if place.number > 1 else "at its first start"
        kept = "" if self._settings.runner_output is None else "; its runner keeps what it printed"
        return SessionEnd(failed=f"its program ended with code {end.code}, {times}{kept}")

    def _keep(self, place: TakenPlace, output: str) -> None:
        """Keeps the end of what a program has printed, where the operator wants it."""
        if (folder := self._settings.runner_output) is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{place.uid}-{place.number}.txt").write_text(output)
            except OSError as error:
                _log.warning("what a program has printed is lost", rollout_uid=place.uid, error=error.strerror)

    def _values(self, session: OpenSession, place: TakenPlace) -> dict[str, str]:
        key = make_key(session.secret, session.uid, place.number)
        url = f"{self._settings.door_url.rstrip('/')}/s/{session.uid}"
        return {"prompt": session.prompt, "url": url, "key": key}

    async def _hold(self, place: TakenPlace) -> None:
        """Renews the lease; returns when the program has to end.

        Where Redis does not answer, the program goes on. If the place is another runner's meanwhile, a door refuses
        what it says.
        """
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(StoreError):
                if not await self._sessions.hold_place(place, LEASE_SECONDS):
                    return

    async def _leave(
        self, place: TakenPlace, how: SessionEnd | None, counts: Literal["deaths", "nothing"] = "deaths"
    ) -> None:
        """Ends the place; where Redis does not answer, once it does."""
        while True:
            with suppress(StoreError):
                await self._sessions.leave_place(place, how, counts)
                return
            await asyncio.sleep(RENEW_SECONDS)

    @staticmethod
    async def _stop(program: "asyncio.Task[SessionEnd | None]") -> None:
        program.cancel()
        await asyncio.wait({program})
        if not program.cancelled() and (error := program.exception()) is not None:
            _log.error("a place failed", error=type(error).__name__)
