"""What a campaign proves, from the trainers' and the client's own logs; the pool's word counts for nothing here.

The truth about a rollout's tokens is built from the prompts and ids that its trainer noted as it sampled them, with
nothing of the pool's code: each turn's prompt either continues what was seen and sampled before, then what was added
has mask 0, or it does not, then a further sample begins with it. An engine keeps nothing, so it may note a turn twice;
there the truth is the one way through its notes that the result is (`engine_samples`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from tests.chaos.deaths import Deaths, declarations, judge_deaths
from tests.chaos.engine_samples import judge_engines
from tests.chaos.grades import graders_of, is_grader_failure, waited_for_sibling, wrong_grades
from tests.chaos.manners import MUST_COMPLETE, MUST_FAIL, Manner
from tests.chaos.record import entries
from tests.chaos.recovery import Ask, Recovery, asks_of, pauses_of, recoveries
from tests.chaos.sessions import Sessions, environments_of, is_environment_failure, judge_sessions

IN_DOUBT = ("ambiguous_turn", "network_error")
"""The worker died during a call, or its connection broke."""

Sample = dict[str, list[Any]]


@dataclass
class Verdict:
    """The table, before it is one."""

    submitted: int = 0
    completed: int = 0
    failed_as_expected: int = 0
    """Typed failures of rollouts whose trainer lied, was deaf or forgot, or did not promise to be asked again."""
    lost: list[str] = field(default_factory=list)
    """Accepted and not completed, though the trainer was honest; or never delivered."""
    delivered_twice: list[str] = field(default_factory=list)
    """Read at two cursors, pushed under two ids, or delivered with two contents; or one key made two batches."""
    sampled_twice: list[str] = field(default_factory=list)
    """Turns, as uid/turn."""
    sampled_after_loss: int = 0
    """Turns that a trainer sampled again because it had been killed and remembers nothing; it promised too much."""
    wrong_masks: list[str] = field(default_factory=list)
    """Delivered samples that are not what the trainer sampled, token by token; or data from a liar."""
    engine_samples: int = 0
    """Rollouts over engines, of which each has one sample."""
    over_updates: int = 0
    """Turns of these that several versions of the weights have sampled."""
    resampled: int = 0
    """Turns that an engine sampled more than once, because the first reply was lost."""
    wrong_versions: list[str] = field(default_factory=list)
    """Rollouts over engines whose segments do not name the weights that sampled the ids."""
    graded: int = 0
    """Rollouts that were delivered with a grade, of which there is one."""
    wrong_grades: list[str] = field(default_factory=list)
    """Rollouts whose grade is not what follows from what was sampled, or with a reward although their grader failed."""
    sessions: Sessions = field(default_factory=Sessions)
    resumed: int = 0
    """Rollouts that had asked their trainer in one attempt and went on in a later one."""
    pushed_again: int = 0
    """Pushes that came once more under the same webhook-id with the same content; receivers drop these by it."""
    kills: Counter[str] = field(default_factory=Counter)
    kills_that_hit: Counter[str] = field(default_factory=Counter)
    """Of those, with at least one rollout in flight in what was killed."""
    failpoints: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Categories of all failures."""
    recoveries: list[Recovery] = field(default_factory=list)
    """From each death to the next sign of each rollout that the process had."""
    pauses: list[float] = field(default_factory=list)
    """From each reply to the next call of the same attempt, in seconds."""
    deaths: Deaths = field(default_factory=Deaths)
    written_by_replaced: list[str] = field(default_factory=list)
    """Rollouts whose result is that of an attempt which a later one had replaced."""
    asked_by_replaced: int = 0
    """Calls of attempts that a later one had replaced, as a worker makes that was stopped and goes on."""
    replayed: int = 0
    """Completed rollouts that were run again from their results; only where that was asked for."""
    not_reproduced: list[str] = field(default_factory=list)
    """Of these, those that came out otherwise."""
    strays: int = 0
    """What the pool's audit found open and nowhere."""
    injected: int = 0
    """Rollouts that the campaign took out of their places. What the audit finds beyond them is a fault or a false
    alarm; one that it does not find is lost."""
    skipped: list[str] = field(default_factory=list)
    """Faults that this machine can't have, each with why."""
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return (
            not (
                self.lost
                or self.delivered_twice
                or self.sampled_twice
                or self.wrong_masks
                or self.wrong_versions
                or self.wrong_grades
                or self.written_by_replaced
                or self.deaths.false
                or self.not_reproduced
                or self.strays > self.injected
            )
            and self.sessions.clean
        )

    def document(self) -> dict[str, Any]:
        """As JSON."""
        recovered = [asdict(recovery) for recovery in self.recoveries]
        nested = {"deaths": asdict(self.deaths), "sessions": asdict(self.sessions)}
        found = vars(self) | nested | {"recoveries": recovered, "clean": self.clean}
        # A campaign has tens of thousands.
        found["pauses"] = quantiles(self.pauses, n=20, method="inclusive") if len(self.pauses) > 1 else self.pauses
        return found


def truth(turns: Sequence[dict[str, Any]]) -> list[Sample]:
    """The training samples of a rollout, from what its trainer noted of each turn."""
    samples: list[Sample] = []
    seen: list[int] = []
    for turn in turns:
        prompt, ids = turn["prompt"], turn["ids"]
        if not samples or prompt[: len(seen)] != seen:
            samples.append({"prompt_ids": prompt, "response_ids": [], "response_mask": [], "response_logprobs": []})
            added = []
        else:
            added = prompt[len(seen) :]
        last = samples[-1]
        last["response_ids"] += [*added, *ids]
        last["response_mask"] += [0] * len(added) + [1] * len(ids)
        last["response_logprobs"] += [0.0] * len(added) + turn["logprobs"]
        seen = [*prompt, *ids]
    return samples


def judge(folder: Path) -> Verdict:
    """Reads all logs."""
    trainers = {path.stem: list(entries(path)) for path in sorted(folder.glob("trainer-*.jsonl"))}
    client = list(entries(folder / "client.jsonl"))
    campaign = list(entries(folder / "campaign.jsonl"))
    verdict = Verdict()
    manners, pushed = _accepted(client, verdict)
    sampled = _sampled(trainers.values(), manners, verdict)
    results = _delivered(client, pushed, manners, verdict)
    engines = judge_engines(trainers.values(), manners, results)
    sampled.update(engines.turns)
    verdict.engine_samples, verdict.over_updates = len(engines.turns), engines.over_updates
    verdict.resampled, verdict.wrong_versions = engines.resampled, engines.wrong_versions
    graders, environments = graders_of(client), environments_of(client)
    groups: defaultdict[str, list[Manner]] = defaultdict(list)
    for uid, (_, group) in graders.items():
        groups[group or ""].append(manners[uid])
    for uid, manner in manners.items():
        grader, group = graders.get(uid, (None, None))
        result = results.get(uid)
        allowed = result is not None and (
            is_grader_failure(result, grader)
            or waited_for_sibling(result, group, groups)
            or is_environment_failure(result, environments.get(uid))
        )
        _judge_one(uid, manner, result, sampled.get(uid, {}), verdict, allowed)
    verdict.graded = sum(result.get("grade") is not None for result in results.values())
    # Without a grader, the reward is the environment's.
    scored = {uid for uid in environments if graders.get(uid, (None, None))[0] is None}
    graded = {uid: grader for uid, grader in graders.items() if uid not in scored}
    verdict.wrong_grades += wrong_grades(graded, results, sampled)
    played = folder / "environments.jsonl"
    verdict.sessions = judge_sessions(list(entries(played)) if played.exists() else [], environments, results, campaign)
    asks = asks_of(trainers, campaign)
    _resumptions(asks, results, manners, campaign, trainers, verdict)
    _kills(asks, results, trainers, campaign, verdict)
    verdict.faults = Counter(
        entry["kind"] for entry in campaign if entry["event"] == "fault" and entry["kind"] != "kill"
    )
    verdict.deaths = judge_deaths(campaign, declarations(sorted(folder.glob("api-*.log"))))
    verdict.strays = next((e.get("strays", 0) for e in reversed(campaign) if e["event"] == "totals"), 0)
    verdict.injected = verdict.faults["lose a rollout"]
    verdict.skipped = [entry["why"] for entry in campaign if entry["event"] == "skipped"]
    begin = next((entry["at"] for entry in campaign if entry["event"] == "begin"), 0.0)
    end = next((entry["at"] for entry in reversed(campaign) if entry["event"] == "end"), begin)
    verdict.seconds = end - begin
    return verdict


def _accepted(client: Sequence[dict[str, Any]], verdict: Verdict) -> tuple[dict[str, Manner], set[str]]:
    """The manner of each rollout's port, and which have to be pushed."""
    batches: dict[str, str] = {}
    manners: dict[str, Manner] = {}
    pushed: set[str] = set()
    for entry in client:
        if entry["event"] != "accepted":
            continue
        if batches.setdefault(entry["key"], entry["batch"]) != entry["batch"]:
            verdict.delivered_twice.append(f"key {entry['key']}")
        manners.update(zip(entry["rollouts"], map(Manner, entry["manners"]), strict=True))
        if entry["pushed"]:
            pushed.update(entry["rollouts"])
    verdict.submitted = len(manners)
    return manners, pushed


def _sampled(
    logs: Iterable[Sequence[dict[str, Any]]], manners: dict[str, Manner], verdict: Verdict
) -> dict[str, dict[int, dict[str, Any]]]:
    found: defaultdict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for log in logs:
        for entry in log:
            if entry["event"] == "sampled":
                if entry["turn"] in found[entry["uid"]]:
                    if manners.get(entry["uid"]) is Manner.FORGETFUL:
                        verdict.sampled_after_loss += 1
                    else:
                        verdict.sampled_twice.append(f"{entry['uid']}/{entry['turn']}")
                found[entry["uid"]][entry["turn"]] = entry
    return found


def _delivered(
    client: Sequence[dict[str, Any]], pushed: set[str], manners: dict[str, Manner], verdict: Verdict
) -> dict[str, dict[str, Any]]:
    """The read results by uid, each with the time `at` which it came."""
    results: dict[str, dict[str, Any]] = {}
    ids: dict[str, str] = {}
    contents: dict[str, Any] = {}
    for entry in client:
        if entry["event"] not in ("result", "again", "push"):
            continue
        uid, result = entry["uid"], entry["result"]
        twice = contents.setdefault(uid, result) != result or uid not in manners
        if entry["event"] == "result":
            twice = twice or uid in results
            results[uid] = {**result, "at": entry["at"]}
        elif entry["event"] == "push":
            twice = twice or ids.get(uid, entry["id"]) != entry["id"]
            verdict.pushed_again += uid in ids
            ids[uid] = entry["id"]
        if twice:
            verdict.delivered_twice.append(uid)
    verdict.lost += [f"{uid} (not pushed)" for uid in sorted(pushed - ids.keys())]
    return results


def _judge_one(
    uid: str,
    manner: Manner,
    result: dict[str, Any] | None,
    turns: dict[int, dict[str, Any]],
    verdict: Verdict,
    allowed: bool,
) -> None:
    """`allowed`: it failed because of its grader or its environment, as it must or may."""
    if result is None:
        verdict.lost.append(uid)
        return
    completed = result["status"] == "completed"
    verdict.completed += completed
    if result["failure"] is not None:
        verdict.failures[f"{manner}: {result['failure']['category']}"] += 1
    if completed and manner in MUST_FAIL:
        verdict.wrong_masks.append(uid)
    elif allowed:
        verdict.failed_as_expected += 1
    elif not completed and (manner in MUST_COMPLETE or (manner is Manner.ONCE and not _in_doubt(result))):
        failure = result["failure"]
        reason = f"{failure['category']}: {failure['message'][:200]}" if failure else result["status"]
        verdict.lost.append(f"{uid} ({manner}: {reason})")
    elif not completed:
        verdict.failed_as_expected += 1
    numbers = range(1, result["num_llm_calls"] + 1)
    if completed and turns.keys() != set(numbers):
        verdict.wrong_masks.append(uid)
    elif result["samples"] or completed:
        expected = truth([turns[number] for number in numbers if number in turns])
        kept = [{name: sample[name] for name in expected[0]} for sample in result["samples"]] if expected else None
        if kept != expected:
            verdict.wrong_masks.append(uid)


def _in_doubt(result: dict[str, Any]) -> bool:
    """Whether it failed because nobody can know whether its trainer had sampled a turn."""
    return result["failure"] is not None and result["failure"]["category"] in IN_DOUBT


def _resumptions(
    asks: dict[str, list[Ask]],
    results: dict[str, dict[str, Any]],
    manners: dict[str, Manner],
    campaign: Sequence[dict[str, Any]],
    trainers: dict[str, list[dict[str, Any]]],
    verdict: Verdict,
) -> None:
    for uid, mine in asks.items():
        result = results.get(uid)
        last = max(ask.attempt for ask in mine)
        verdict.resumed += max(last, result["attempt"] if result else 0) > mine[0].attempt
        # Once a later attempt asks, nothing that an earlier one writes may count.
        if result is not None and result["attempt"] < last:
            verdict.written_by_replaced.append(uid)
        highest = 0
        for ask in mine:
            verdict.asked_by_replaced += ask.attempt < highest
            highest = max(highest, ask.attempt)
    verdict.recoveries = recoveries(asks, results, manners, campaign, trainers)
    verdict.pauses = pauses_of(asks, campaign)


def _kills(
    asks: dict[str, list[Ask]],
    results: dict[str, dict[str, Any]],
    trainers: dict[str, list[dict[str, Any]]],
    campaign: Sequence[dict[str, Any]],
    verdict: Verdict,
) -> None:
    verdict.failpoints = Counter(entry["failpoint"] for entry in campaign if entry["event"] == "failpoint")
    # From the first call to the result: in the pool's hands.
    spans = [(mine[0].at, results[uid]["at"] if uid in results else float("inf")) for uid, mine in asks.items()]
    for entry in campaign:
        if entry["event"] != "fault" or entry["kind"] != "kill":
            continue
        at, what = entry["at"], entry["what"]
        verdict.kills[what] += 1
        if what == "trainer":
            hit = _calls_open(trainers[entry["target"]], at)
        elif entry["pids"]:
            hit = any(_lost_its_worker(mine, results.get(uid), entry["pids"], at) for uid, mine in asks.items())
        else:
            hit = any(begin < at < end for begin, end in spans)
        verdict.kills_that_hit[what] += hit


def _lost_its_worker(mine: Sequence[Ask], result: dict[str, Any] | None, pids: Sequence[int], at: float) -> bool:
    """Whether its last call before this time came from one of these, and another attempt had to go on."""
    before = [ask for ask in mine if ask.at <= at]
    if not before or before[-1].pid not in pids:
        return False
    last = max(mine[-1].attempt, result["attempt"] if result else 0)
    return last > before[-1].attempt


def _calls_open(log: Sequence[dict[str, Any]], at: float) -> bool:
    calls: Counter[tuple[str, int]] = Counter()
    for entry in log:
        if entry["at"] > at:
            break
        if entry["event"] == "start":
            calls.clear()
        elif entry["event"] in ("ask", "answer"):
            calls[entry["uid"], entry["turn"]] += 1 if entry["event"] == "ask" else -1
    return any(count > 0 for count in calls.values())
