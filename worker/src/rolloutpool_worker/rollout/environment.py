"""The environment of one attempt: its session, and the rollout as it is asked with it.

The session's messages follow the rollout's own, and its tools go into each request for a turn (`tools`, after the other
sampling keys), because no trainer knows them from elsewhere. Both are decided before the first turn and do not change,
so all that follows sees a rollout that was submitted with them.
"""

import asyncio
from dataclasses import replace

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.environments import TOOL_SERVER, CrashEffect
from rolloutpool_common.protocol.journal import EnvironmentRecord
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Claim
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.drain import RolloutStop
from rolloutpool_worker.environments.base import ENVIRONMENTS, Environment
from rolloutpool_worker.environments.host import EnvironmentHost
from rolloutpool_worker.environments.resume import open_session
from rolloutpool_worker.environments.session import SessionLife
from rolloutpool_worker.recorded.stand_ins import RecordedSession
from rolloutpool_worker.tools import TOOLS, Tool


def session_of(claim: Claim, host: EnvironmentHost, beginning: Beginning | None = None) -> SessionLife | None:
    """Makes the attempt's session, not opened yet; None where the rollout names no environment."""
    choice = claim.spec.environment
    if choice is None:
        return None
    environment = _named(choice.name, claim, host)
    if beginning is not None:
        return RecordedSession(beginning.script, environment, choice, claim.uid, claim.attempt, host)
    return SessionLife(environment, choice, claim.uid, claim.attempt, host)


def _named(name: str, claim: Claim, host: EnvironmentHost) -> Environment:
    # Only protocol v1's own field leads to a server that a rollout names.
    if claim.spec.v1 and name == TOOL_SERVER:
        if host.tool_servers is None:
            raise RequestFault(
                "tool_server_url is called by the API's settings and not by this worker's: give all of them the same "
                "ROLLOUTPOOL_V1_TOOL_SERVERS"
            )
        return host.tool_servers
    if (environment := ENVIRONMENTS.get(name)) is None:
        raise RequestFault(f"no environment {name!r} on this worker; it has {ENVIRONMENTS.names()}")
    return environment


async def begin_session(
    life: SessionLife, claim: Claim, journal: Journal, stop: RolloutStop, beginning: Beginning | None = None
) -> Claim:
    """Opens the session, and journals that it was opened."""
    inherited = journal.inherited
    before = inherited if beginning is None else beginning.session_records(inherited)
    record = await open_session(life, before)
    if inherited:
        journal.place(0).replay(EnvironmentRecord)
    else:
        # Behind recorded turns it was opened as the record says, and is noted in a journal of its own.
        record = record or next(one for one in before if isinstance(one, EnvironmentRecord))
        life.messages = record.messages
        await journal.write(record, turns=0)
    if life.environment.crash is CrashEffect.NONE:
        stop.stays = True
    spec = claim.spec
    if twice := sorted(life.tools.keys() & set(spec.tools or ())):
        raise RequestFault(f"environment {life.choice.name} has tools of its own named {twice}; leave them out")
    messages = [*spec.messages, *map(Message.model_validate, life.messages)]
    changes: dict[str, object] = {"messages": messages}
    # An engine is asked with ids, in which they are rendered already.
    if (tools := tools_of(spec, life)) and not spec.token_in:
        shown = [tool.shown for tool in tools.values()]
        changes["sampling_params"] = spec.sampling_params.model_copy(update={"tools": shown})
    return replace(claim, spec=spec.model_copy(update=changes))


async def close_session(
    life: SessionLife | None, ending: RolloutResult | BaseException
) -> RolloutResult | BaseException:
    """Closes the session, where there is one; the end of an interrupted close is another ending of the attempt."""
    try:
        if life is not None:
            await life.close()
        return ending
    except asyncio.CancelledError as cancelled:
        return cancelled


def tools_of(spec: RolloutSpec, life: SessionLife | None) -> dict[str, Tool]:
    """Lists the tools that the policy may call, by name."""
    if life is None:
        return {tool.name: tool for tool in TOOLS.values() if spec.tools is None or tool.name in spec.tools}
    # Without a list these are the session's alone: a game's policy did not ask for a calculator.
    named = {tool.name: tool for tool in TOOLS.values() if tool.name in (spec.tools or ())}
    return {**life.tools, **named}
