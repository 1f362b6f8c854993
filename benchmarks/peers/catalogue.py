"""What is compared: three ways to use the pool, and what users would pick instead of it.

The texts are published beside the figures. They say what each system gives back, and in which direction the comparison
is unfair; whoever changes an adapter has to look at them again.
"""

from dataclasses import dataclass

from benchmarks.load import System
from benchmarks.peers.openai_form import Form


@dataclass(frozen=True, kw_only=True)
class Described:
    """What the page says of a system."""

    name: str
    gives_back: str
    """Token ids, masks, logprobs."""
    exact: str
    """Whether the ids and masks are those of what was sampled."""
    durable: str
    """What is left after a crash."""


@dataclass(frozen=True, kw_only=True)
class Ours(Described):
    """One way to use the pool."""

    system: System


@dataclass(frozen=True, kw_only=True)
class Peer(Described):
    """One thing that users would pick instead."""

    adapter: str
    """The module in `adapters` that runs it."""
    environment: str
    """The name of its venv, and of its file of requirements."""
    form: Form
    """How the scripted model answers it."""
    least_python: tuple[int, int] = (3, 11)

    @property
    def slug(self) -> str:
        """Its name in a file's name."""
        return f"{self.environment}-{self.form.value}"


_PROVED = "proved for each rollout, or the rollout is refused"
_DURABLE = "each turn, by fsync; rollouts go on elsewhere after a kill"
OURS = (
    Ours(
        name="batches, keeps ids",
        system=System.POOL,
        gives_back="ids, masks, logprobs, messages",
        exact=_PROVED,
        durable=_DURABLE,
    ),
    Ours(
        name="POST /rollout, keeps ids",
        system=System.POOL_V1,
        gives_back="messages; each turn's mask goes to the trainer with its request",
        exact=_PROVED,
        durable=_DURABLE,
    ),
    Ours(
        name="POST /rollout, renders again",
        system=System.POOL_RERENDER,
        gives_back="messages; each turn's mask goes to the trainer with its request",
        exact=f"{_PROVED}; where the render has other ids than were sampled, a new sample begins (a fork)",
        durable=_DURABLE,
    ),
)
BATCHES = OURS[0].name
"""Factors are to this system."""

PEERS = (
    Peer(
        name="by hand",
        adapter="by_hand",
        environment="by-hand",
        form=Form.VLLM,
        gives_back="ids, masks, logprobs",
        exact="only where a reply that is rendered again is as long as it was sampled; nothing checks it",
        durable="nothing",
    ),
    Peer(
        name="verifiers, messages",
        adapter="verifiers_loop",
        environment="verifiers",
        form=Form.PLAIN,
        gives_back="messages; no ids, no masks",
        exact="",
        durable="nothing here; its command line appends finished traces to a file",
    ),
    Peer(
        name="verifiers, token ids",
        adapter="verifiers_loop",
        environment="verifiers",
        form=Form.GENERATE,
        gives_back="ids, masks, logprobs, messages",
        exact="yes, for families that it has a renderer for; the engine must take and give token ids",
        durable="nothing here; its command line appends finished traces to a file",
    ),
    Peer(
        name="NeMo Gym",
        adapter="nemo_gym_loop",
        environment="nemo-gym",
        form=Form.NEMO,
        least_python=(3, 12),
        gives_back="each turn's prompt ids, sampled ids and logprobs, as the model's server told them; no masks",
        exact="as far as the model's server keeps ids; nothing checks it",
        durable="nothing here; its collector appends finished rollouts to a file, without fsync",
    ),
)

UNFAIR = {
    "In our favour": (
        "The scripted model renders and tokenises nothing. Where chat completions are asked for, the real "
        "server would do both each turn, which is not counted. *Verifiers, token ids* does it in its own "
        "process, and pays for it here.",
        "The trainer of *batches, keeps ids* declares that it does, so it echoes only what is new of a "
        "prompt. *By hand* and *NeMo Gym* are told the whole prompt each turn.",
        "The pool has two worker processes; *by hand* and *verifiers* run in one. This helps our rate where "
        "the model takes no time, and changes no CPU time. verifiers can serve environments from several "
        "processes, and NeMo Gym's servers can have several workers: neither is used.",
        "Results of the pool are read as bytes. Parsing them, which a trainer has to do, is not counted. NeMo "
        "Gym's collector parses its results, and the others have them in memory.",
        "The pool's processes run on uvloop, as it is shipped. *By hand* and *verifiers* run on asyncio's own loop.",
        "The conversations are what the pool is made for: one cheap tool, many short turns. verifiers is made "
        "for programs in sandboxes, NeMo Gym for environments that are servers. Nothing of that is used here.",
    ),
    "In the peers' favour": (
        "They write nothing to disk, while the pool writes each turn with fsync. NeMo Gym's collector would "
        "append each result to a file.",
        "verifiers' own harnesses start a program for each rollout. Here the harness's loop runs in the same process.",
        "NeMo Gym's Ray cluster is not counted. The model's server tells it the ids, so it tokenises nothing.",
        "*By hand* and *verifiers* have no API: their caller is in the same process. The pool's client is in "
        "another one, and its CPU time is counted as the pool's.",
        "The conversations have calls whose render is what was sampled, so the mask by length difference is "
        "right. For others it is not ([masks](../masks.md)).",
    ),
}
"""By direction, in sentences for the page."""
