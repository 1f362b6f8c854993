"""What the dashboard asks Prometheus: rows, each a question about the pool, and the panels that answer it.

`dashboard.py` makes Grafana's JSON of them. Each API process shows the whole pool, so an expression takes the largest
over instances.
"""

from typing import NamedTuple

JOB = '{job="$job"}'
INFRA = 'kind="infra"'


class Ask(NamedTuple):
    """One query of a panel."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """One panel; a stat shows one number, a chart shows lines over time."""

    title: str
    about: str
    unit: str
    asks: tuple[Ask, ...]
    is_stat: bool = False


class Row(NamedTuple):
    """Panels that answer one question."""

    question: str
    panels: tuple[Panel, ...]


def now(metric: str) -> str:
    """A gauge."""
    return f"max without (instance) (rolloutpool_{metric}{JOB})"


def rate(metric: str, by: str = "", only: str = "") -> str:
    """Events per second."""
    labels = f'{{job="$job",{only}}}' if only else JOB
    per_second = f"max without (instance) (rate(rolloutpool_{metric}{labels}[$__rate_interval]))"
    return f"sum by ({by}) ({per_second})"


def quantile(q: float, histogram: str, by: str = "") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({q:g}, {rate(f'{histogram}_bucket', ', '.join(filter(None, (by, 'le'))))})"


def quantiles(histogram: str) -> tuple[Ask, ...]:
    """Median, p95 and p99."""
    return tuple(Ask(quantile(q, histogram), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


ROWS = (
    Row(
        "Is it healthy?",
        (
            Panel("Redis", "1: Redis answers", "none", (Ask(now("redis_up"), "up"),), True),
            Panel(
                "Reconciler",
                "1: an API process puts the work of dead workers back",
                "none",
                (Ask(now("reconciler_leader"), "leads"),),
                True,
            ),
            Panel("Workers", "Processes that beat", "none", (Ask(now("workers"), "workers"),), True),
            Panel("Open rollouts", "Accepted and not ended", "short", (Ask(now("rollouts_open"), "open"),), True),
            Panel("Dead letters", "Rollouts that kill workers", "none", (Ask(now("dead_letters"), "dead"),), True),
            Panel("Paused runs", "No model call of theirs is sent", "none", (Ask(now("runs_paused"), "paused"),), True),
            Panel("Results to push", "Due at a webhook", "none", (Ask(now("pushes_pending"), "due"),), True),
            Panel("Wait for a grade", "Sampled, not yet graded", "none", (Ask(now("rollouts_grading"), "wait"),), True),
            Panel(
                "Infra failures",
                "Share of ended rollouts; the policy cannot cause these",
                "percentunit",
                (Ask(f"{rate('rollout_failures_total', only=INFRA)} / ({rate('rollouts_ended_total')} > 0)", "infra"),),
            ),
            Panel(
                "Oldest ticket",
                "How long the oldest published ticket has waited",
                "s",
                (Ask(now("oldest_ticket_seconds"), "{{priority}}"),),
            ),
            Panel(
                "Requeued",
                "By what was counted",
                "short",
                (Ask(rate("rollouts_requeued_total", "reason"), "{{reason}}"),),
            ),
            Panel(
                "Lost",
                "Workers that were declared dead, tickets that the broker lost, and rollouts that were in no place",
                "short",
                (
                    Ask(rate("workers_lost_total"), "workers"),
                    Ask(rate("tickets_republished_total"), "tickets"),
                    Ask(rate("strays_total"), "strays"),
                ),
            ),
            Panel(
                "Cancelled batches",
                "Cancelled as a whole; lease: nobody read them any more",
                "short",
                (Ask(rate("batches_cancelled_total", "cause"), "{{cause}}"),),
            ),
            Panel(
                "Submits refused",
                "Without a fault; by what was short, and whose they were",
                "short",
                (Ask(rate("submits_refused_total", "cause, key"), "{{key}}: {{cause}}"),),
            ),
            Panel("Webhooks", "Results pushed", "short", (Ask(rate("pushes_total", "outcome"), "{{outcome}}"),)),
            Panel(
                "Trainer calls that failed",
                "By trainer and outcome; a 422 is a refused mask, which is normal",
                "reqps",
                (Ask(rate("model_calls_total", "endpoint, outcome", 'outcome!="ok"'), "{{endpoint}} {{outcome}}"),),
            ),
        ),
    ),
    Row(
        "Is it fast?",
        (
            Panel(
                "Rollouts ended", "Per second", "short", (Ask(rate("rollouts_ended_total", "status"), "{{status}}"),)
            ),
            Panel(
                "Accepted",
                "Per second",
                "short",
                (Ask(rate("rollouts_accepted_total"), "rollouts"), Ask(rate("batches_accepted_total"), "batches")),
            ),
            Panel("Turns of ended rollouts", "Per second", "short", (Ask(rate("turns_total"), "turns"),)),
            Panel(
                "Tokens",
                "Per second, of ended rollouts",
                "short",
                (Ask(rate("sampled_tokens_total"), "sampled"), Ask(rate("tokens_total"), "all")),
            ),
            Panel("Wait in the queue", "Acceptance to first claim", "s", quantiles("rollout_queue_seconds")),
            Panel("Duration of a rollout", "Last claim to end", "s", quantiles("rollout_duration_seconds")),
            Panel(
                "Model calls, p95",
                "By trainer",
                "s",
                (Ask(quantile(0.95, "model_call_seconds", "endpoint"), "{{endpoint}}"),),
            ),
            Panel("Tool calls, p95", "By tool", "s", (Ask(quantile(0.95, "tool_call_seconds", "tool"), "{{tool}}"),)),
            Panel(
                "Tool calls that failed",
                "By tool; the policy reads why",
                "reqps",
                (Ask(rate("tool_calls_total", "tool", 'outcome="error"'), "{{tool}}"),),
            ),
            Panel(
                "Slots",
                "Used by all workers, and of the fullest and emptiest one",
                "short",
                (
                    Ask(now("slots"), "slots"),
                    Ask(now("rollouts_running"), "running"),
                    Ask(now("worker_slots_used_max"), "fullest worker"),
                    Ask(now("worker_slots_used_min"), "emptiest worker"),
                ),
            ),
            Panel(
                "Waiting work",
                "By where it waits",
                "short",
                (
                    Ask(f"sum by (place) ({now('rollouts_queued')})", "{{place}}"),
                    Ask(now("rollouts_delayed"), "delayed"),
                ),
            ),
            Panel(
                "Share of each phase",
                "What ended rollouts spent their time with",
                "percentunit",
                (
                    Ask(
                        f"{rate('time_seconds_total', 'phase')} / on () group_left () "
                        f"({rate('time_seconds_total')} > 0)",
                        "{{phase}}",
                    ),
                ),
            ),
            Panel("Now in", "What running rollouts wait for", "short", (Ask(now("turns_in_flight"), "{{phase}}"),)),
        ),
    ),
    Row(
        "Are the weights fresh?",
        (
            Panel(
                "Staleness",
                "Versions that its run was ahead of a completed rollout's oldest weights",
                "short",
                quantiles("rollout_staleness"),
            ),
            Panel(
                "Oldest weights that run",
                "Versions behind the run, of the rollout that is furthest behind now",
                "short",
                (Ask(now("running_version_lag"), "versions"),),
            ),
            Panel(
                "Too old",
                "For max_staleness: dropped and restarted rollouts are work thrown away",
                "short",
                (Ask(rate("rollouts_stale_total", "what"), "{{what}}"),),
            ),
            Panel("Version lag", "Of the first turn, in versions", "short", quantiles("policy_version_lag")),
            Panel("Pauses", "Of runs", "short", (Ask(rate("run_pauses_total"), "begun"),)),
        ),
    ),
    Row(
        "Do environments and graders answer?",
        (
            Panel(
                "Environments, p95",
                "By environment and what it was asked",
                "s",
                (Ask(quantile(0.95, "environment_call_seconds", "environment, what"), "{{environment}} {{what}}"),),
            ),
            Panel(
                "Environments that failed",
                "full: the rollout is queued again; refused, which is normal, is left out",
                "reqps",
                (
                    Ask(
                        rate("environment_calls_total", "environment, outcome", 'outcome=~"full|timeout|error"'),
                        "{{environment}} {{outcome}}",
                    ),
                ),
            ),
            Panel("Sessions", "Open now", "short", (Ask(now("environment_sessions"), "open"),)),
            Panel(
                "Graders, p95",
                "By grader",
                "s",
                (Ask(quantile(0.95, "grader_call_seconds", "grader"), "{{grader}}"),),
            ),
            Panel(
                "Grades that failed",
                "By grader; the rollouts are delivered without a reward in the end",
                "reqps",
                (Ask(rate("grader_calls_total", "grader, outcome", 'outcome!="ok"'), "{{grader}} {{outcome}}"),),
            ),
        ),
    ),
    Row(
        "Can the tokens be trusted?",
        (
            Panel(
                "Alignment",
                "How well the sampled tokens are proved",
                "short",
                (Ask(rate("rollout_alignments_total", "alignment"), "{{alignment}}"),),
            ),
            Panel(
                "Drifted turns",
                "A label that was never there means that something changed",
                "short",
                (Ask(rate("drifted_turns_total", "label"), "{{label}}"),),
            ),
            Panel(
                "Failures of proof",
                "Any of these: stop the run",
                "short",
                (
                    Ask(
                        rate(
                            "rollout_failures_total",
                            "category",
                            'category=~"mask_disproved|quarantined|tokenizer_mismatch"',
                        ),
                        "{{category}}",
                    ),
                    Ask(rate("delta_doubts_total"), "delta_doubted"),
                ),
            ),
            Panel(
                "Warnings",
                "Of ended rollouts",
                "short",
                (Ask(rate("rollout_warnings_total", "warning"), "{{warning}}"),),
            ),
            Panel("Turns", "Of a rollout", "short", quantiles("rollout_turns")),
            Panel("Context", "Longest prompt with reply, tokens", "short", quantiles("rollout_context_tokens")),
            Panel("Groups", "With a verdict", "short", (Ask(rate("groups_total", "verdict"), "{{verdict}}"),)),
        ),
    ),
    Row(
        "The machine",
        (
            Panel(
                "Event loop lag, p99",
                "Saturation of API and workers",
                "s",
                (Ask(quantile(0.99, "event_loop_lag_seconds", "component"), "{{component}}"),),
            ),
            Panel("Rendering, p95", "What follows a turn", "s", (Ask(quantile(0.95, "render_seconds"), "p95"),)),
            Panel(
                "API, p95",
                "Requests that do not wait",
                "s",
                (Ask(quantile(0.95, "http_request_seconds", "route"), "{{route}}"),),
            ),
            Panel(
                "API errors",
                "Per second",
                "reqps",
                (Ask(rate("http_requests_total", "route, code", 'code=~"4..|5.."'), "{{code}} {{route}}"),),
            ),
            Panel(
                "Waiting callers",
                "Long polls, event streams among them",
                "short",
                (Ask(now("long_polls"), "long polls"), Ask(now("event_streams"), "event streams")),
            ),
            Panel("Redis, p95", "By script", "s", (Ask(quantile(0.95, "redis_seconds", "script"), "{{script}}"),)),
            Panel(
                "Redis memory",
                "And its limit",
                "bytes",
                (Ask(now("redis_memory_bytes"), "used"), Ask(f"{now('redis_memory_limit_bytes')} > 0", "limit")),
            ),
            Panel(
                "Writes that waited for the disk",
                "Redis' append-only file",
                "short",
                (Ask(rate("redis_aof_delayed_fsync_total"), "delayed"),),
            ),
            Panel("CPU", "Cores", "short", (Ask(rate("process_cpu_seconds_total", "component"), "{{component}}"),)),
            Panel(
                "Memory",
                "All processes, and the largest",
                "bytes",
                (
                    Ask(now("process_resident_memory_bytes"), "{{component}}"),
                    Ask(now("process_resident_memory_max_bytes"), "largest {{component}}"),
                ),
            ),
            Panel("Processes", "That report", "short", (Ask(now("processes"), "{{component}}"),)),
            Panel(
                "Open files",
                "Of the process that has most",
                "short",
                (Ask(now("process_open_fds_max"), "{{component}}"),),
            ),
            Panel("Reconciler, p95", "A round", "s", (Ask(quantile(0.95, "reconcile_seconds"), "p95"),)),
            Panel("Builds", "That run now", "none", (Ask(now("build_info"), "{{component}} {{version}} {{commit}}"),)),
        ),
    ),
)
