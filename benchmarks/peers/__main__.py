"""The pool beside what users would pick instead: CPU per rollout and rate, on the same scripted conversations.

    python -m benchmarks.peers [--quick] [--only 'by hand']

Each peer runs in an environment of its own, which `environment` makes. All systems are up at the same time and take
turns within a round, so that a busy machine is busy for all of them; factors are of runs in one round. A peer that
cannot be installed or does not work gets a row that says why.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.conversations import VARIANTS
from benchmarks.load import Load, Measured, TrainerManner
from benchmarks.peers.catalogue import BATCHES, OURS, PEERS
from benchmarks.peers.driver import PeerFailed, PeerUnderLoad, Run, running_peer
from benchmarks.peers.environment import NotToBeHad, prepare
from benchmarks.peers.report import FILE, PeerFacts, PeersReport, Point, rows
from benchmarks.pool import PoolUnderLoad, running_pool
from benchmarks.processes import ROOT, serving
from benchmarks.report import Row, emit, parser
from benchmarks.v1_load import V1UnderLoad

QWEN3 = ROOT / "build" / "tokenizers" / "qwen3"
"""What `make tokenizers` lays out; each peer can load it, and verifiers has a renderer for it."""
POINTS = (
    Point(3, 100, 0, 400),
    Point(64, 32, 0, 64),
    Point(3, 100, 1000, 300),
    Point(64, 32, 1000, 32),
)
QUICK = (Point(3, 100, 0, 100), Point(64, 16, 0, 16), Point(3, 100, 1000, 100))
WORKERS = 2
ROLLOUTS_PER_TICKET = 8

TITLE = "The pool beside what users would pick instead"
MEASURES = (
    "The same scripted conversations of calculator calls, with Qwen3's tokenizer and template, answered by the same "
    "scripted model: by our batches and by `POST /rollout`, by a loop written by hand (openai client, transformers, "
    "mask by length difference), by verifiers and by NeMo Gym, each in an environment of its own. CPU time is from "
    "/proc, of everything but the scripted model, a client in a process of its own included. Rates are by the wall "
    "clock. All systems are up at the same time and take turns within a round; factors are of one round, with half of "
    "their range. *Right samples* are those whose ids and mask are exactly what was sampled, of eight that were looked "
    "at."
)
LEAVES_OUT = (
    "A model, networks, TLS, drift, sandboxes, tools that take time, memory, what happens when a process dies. See "
    "below for what was not fair."
)


class Comparison:
    """The peers that run, and why the others do not."""

    def __init__(self, stack: ExitStack, port: int) -> None:
        self.running: dict[str, PeerUnderLoad] = {}
        self.missing: dict[str, str] = {}
        self._stacks: dict[str, ExitStack] = {}
        self._versions: dict[str, dict[str, str]] = {}
        self._stack = stack
        self._port = port

    def start_peers(self, only: Sequence[str]) -> None:
        """Makes the environments and starts the adapters."""
        for peer in PEERS:
            if only and peer.name not in only:
                continue
            try:
                environment = prepare(peer)
                stack = self._stacks[peer.name] = self._stack.enter_context(ExitStack())
                context = running_peer(peer, environment, port=self._port, tokenizer=str(QWEN3))
                running = stack.enter_context(context)
                self.running[peer.name], self._versions[peer.name] = running, running.versions
            except (NotToBeHad, PeerFailed) as reason:
                self._leave_out(peer.name, reason)

    def measure(self, point: Point, rounds: int) -> list[Row]:
        """Measures one point, and returns its rows."""
        trainer = f"http://127.0.0.1:{self._port}"
        with running_pool(
            trainer,
            workers=WORKERS,
            in_flight=point.in_flight,
            tickets_of=ROLLOUTS_PER_TICKET,
            tokenizer=str(QWEN3),
        ) as pool:
            ours: dict[str, PoolUnderLoad | V1UnderLoad] = {BATCHES: pool}
            for way in OURS[1:]:
                ours[way.name] = V1UnderLoad(way.system, pool.port, trainer, str(QWEN3))
            loads = {way.name: _load(point, way.system.trainer) for way in OURS}
            for name, system in ours.items():
                system.warm_up(loads[name])
            self._warm_up_peers(point)
            found = []
            for number in range(1, rounds + 1):
                one = {name: _as_run(system.measure(loads[name])) for name, system in ours.items()}
                one |= self._measure_peers(_load(point))
                found.append(one)
                for name, run in one.items():
                    print(f"{point.name}, round {number}: {name}: {_shown(run)}", flush=True)
        return rows(point, found, self.missing)

    def facts(self) -> list[PeerFacts]:
        """Returns what is known of each peer besides figures."""
        return [
            PeerFacts(name=peer.name, versions=self._versions.get(peer.name, {}), missing=self.missing.get(peer.name))
            for peer in PEERS
        ]

    def _warm_up_peers(self, point: Point) -> None:
        # Once with two turns for the connections, once with all of them for the scripted model's caches.
        self._measure_peers(_load(replace(point, turns=2, latency_ms=0, rollouts=point.in_flight)))
        self._measure_peers(_load(replace(point, latency_ms=0, rollouts=VARIANTS)))

    def _measure_peers(self, load: Load) -> dict[str, Run]:
        found = {}
        for name, peer in list(self.running.items()):
            try:
                found[name] = peer.measure(load)
            except PeerFailed as reason:
                self._leave_out(name, reason)
        return found

    def _leave_out(self, name: str, reason: Exception) -> None:
        print(f"{name}: {reason}", file=sys.stderr, flush=True)
        self.missing[name] = str(reason)
        if self.running.pop(name, None) is not None:
            # What hangs or spins would take the others' cores.
            self._stacks[name].close()


def _load(point: Point, trainer: TrainerManner = TrainerManner.SILENT) -> Load:
    return Load(
        turns=point.turns,
        in_flight=point.in_flight,
        latency_ms=point.latency_ms,
        rollouts=point.rollouts,
        trainer=trainer,
    )


def _as_run(measured: Measured) -> Run:
    client_ms = measured.cpu_ms("load")
    return Run(
        rollouts=measured.load.rollouts,
        seconds=measured.seconds,
        cpu_ms=measured.own_cpu_ms + client_ms,
        client_ms=client_ms,
    )


def _shown(run: Run) -> str:
    client = f", {run.client_ms:.2f} of them the client" if run.client_ms is not None else ""
    return f"{run.per_second:.1f}/s, CPU {run.cpu_ms:.2f} ms per rollout{client}"


def main() -> None:
    """Measures all points and writes the report."""
    options = parser("peers", __doc__)
    options.set_defaults(out=ROOT / FILE)
    options.add_argument("--rounds", type=int, help="default: 3, and 1 with --quick")
    options.add_argument("--only", action="append", default=[], help="a peer's name; may be given again")
    given = options.parse_args()
    if not QWEN3.is_dir():
        sys.exit("benchmarks.peers: run `make tokenizers` first")
    rounds = given.rounds or (1 if given.quick else 3)
    found: list[Row] = []
    with ExitStack() as stack:
        port = stack.enter_context(serving("benchmarks.stub_trainer", "--tokenizer", str(QWEN3)))
        comparison = Comparison(stack, port)
        comparison.start_peers(given.only)
        for point in QUICK if given.quick else POINTS:
            found += comparison.measure(point, rounds)
        facts = comparison.facts()
    report = emit("peers", found, given, title=TITLE, measures=MEASURES, leaves_out=LEAVES_OUT)
    whole = PeersReport(**report.model_dump(), peers=facts)
    given.out.write_text(whole.model_dump_json(indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
