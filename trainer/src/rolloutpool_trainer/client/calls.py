"""Every call of the pool's API, without any network: each function makes a `Call`, which can also read its answer.

Both clients send these. Every call may be sent again after a failure: a submission carries an Idempotency-Key,
protocol v1 joins a rollout by its id, and the other calls change nothing when they are repeated.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from rolloutpool_common.protocol.batch import (
    BatchAccepted,
    BatchPurged,
    BatchStatus,
    RolloutItem,
    TrainerPorts,
    TrainerUrls,
)
from rolloutpool_common.protocol.errors import ErrorBody, ErrorDetail, Fault
from rolloutpool_common.protocol.groups import Group, GroupPolicy, Groups
from rolloutpool_common.protocol.health import Health, Ready
from rolloutpool_common.protocol.operations import DeadLetters, EndpointCheck, Preflight
from rolloutpool_common.protocol.result import ResultPage
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.protocol.tools import ToolDefinition, ToolsResponse
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.protocol.v1.response import RolloutResponse
from rolloutpool_common.protocol.workers import WorkersResponse
from rolloutpool_trainer import errors

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

READ_SECONDS = 60.0
"""Longest wait for an answer that needs no rollout to end."""
V1_SECONDS = 660.0
"""Longest wait for `POST /rollout`: the pool's own 600 s, and time to write the answer. A second request joins."""
LONG_POLL_SECONDS = 10.0
"""How long the pool holds a request for results. Then the client looks why there are none."""
AWAITED = 202
"""Status of a cancel that came before its submit."""
PAGE = 200
"""Results per page: some megabytes, so that the first results of a large batch come soon."""
UNAVAILABLE = frozenset({429, 502, 503, 504})
"""Statuses after which the same call is sent again later."""

_DEEPEST = 32
"""Levels of a document in which a fault's place is looked for; what refers to itself has no last one."""

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One request and how to read its answer. It is immutable, so a client may send it several times."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, str | list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """JSON, encoded once, so that a repeated request is equal to the byte."""
    read_seconds: float = READ_SECONDS
    answers: frozenset[int] = frozenset()
    """Error statuses whose body is an answer, not an error."""

    def result(self, response: httpx.Response) -> T:
        """Reads the answer; raises the `ClientError` that it stands for."""
        good = response.is_success or response.status_code in self.answers
        if not good:
            raise _error(response)
        try:
            return self.read(response)
        except (ValidationError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise errors.UnexpectedAnswer(
                f"{_where(response)} answered {response.status_code} with a body that is not the pool's: {reason}",
                status=response.status_code,
            ) from error


def _where(response: httpx.Response) -> str:
    return f"{response.request.method} {response.request.url}"


def _detail(detail: Any) -> str:
    """Returns FastAPI's error text. Of a list only place and reason, because each entry repeats the input."""
    if isinstance(detail, list):
        entries = [entry for entry in detail if isinstance(entry, dict)]
        return "; ".join(f"{'.'.join(map(str, entry.get('loc', ())))}: {entry.get('msg', '')}" for entry in entries)
    return detail if isinstance(detail, str) else ""


def _said(response: httpx.Response) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Reads the body of an error, what it has in the pool's own form, and the message."""
    try:
        document = response.json()
    except ValueError:
        document = None
    body = document if isinstance(document, dict) else {}
    own = error if isinstance(error := body.get("error"), dict) else {}
    return body, own, said if isinstance(said := own.get("message"), str) else _detail(body.get("detail"))


def what_was_said(response: httpx.Response) -> str:
    """Returns the message of an error; empty where it has none, as a proxy's page."""
    return _said(response)[2]


def _error(response: httpx.Response) -> errors.ClientError:
    status = response.status_code
    body, own, said = _said(response)
    message = f"{_where(response)}: {status}" + (f", {said}" if said else "")
    if status in (401, 403):
        return errors.Unauthorized(message, status=status)
    # A 404 without the pool's own form of an error comes from another server: the address is wrong, not the id.
    if status == 404 and own:
        return errors.NotFound(message, status=status)
    # Where a key was used before, the pool names its batch, and protocol v1 knows no other conflict. A contradiction
    # with the state of something has nothing to do with keys.
    if status == 409 and (not own or own.get("batch_id")):
        return errors.IdempotencyConflict(message, status=status)
    if status == 422 and own:
        try:
            faults = TypeAdapter(list[Fault]).validate_python(own.get("faults", []))
        except ValidationError:
            faults = []
        total = own.get("total_faults", 0)
        first = f" ({faults[0].path}: {faults[0].message})" if faults else ""
        return errors.BatchRejected(
            message + first, status=status, faults=faults, total_faults=total if isinstance(total, int) else 0
        )
    if status in UNAVAILABLE:
        return errors.PoolUnavailable(message, status=status)
    if 400 <= status < 500 and status != 404 and body:
        return errors.RequestRefused(message, status=status)
    return errors.UnexpectedAnswer(message, status=status)


def read_model(model: type[ModelT]) -> Callable[[httpx.Response], ModelT]:
    """Makes the function that reads an answer as this model."""
    return lambda response: _read(model, response)


def _read(model: type[ModelT], response: httpx.Response) -> ModelT:
    return model.model_validate_json(response.content)


def submit(
    rollouts: Sequence[RolloutItem | Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    idempotency_key: str,
    group: GroupPolicy | Mapping[str, Any] | None = None,
) -> Call[BatchAccepted]:
    """`POST /v1/batches`. Nothing is checked here, because the pool lists every fault at once, with its path.

    The same `idempotency_key` with the same batch gives the same batch. `options` are the other fields of the batch, as
    the arguments of `RolloutClient.submit` have them.
    """
    trainer = options.get("trainer")
    document: dict[str, Any] = {
        "rollouts": [_document(item) for item in rollouts],
        "defaults": _document(options.get("defaults") or {}),
        "trainer": trainer_document([trainer] if isinstance(trainer, str) else trainer),
        "priority": options["priority"],
        "labels": dict(options.get("labels") or {}),
        "run": options.get("run"),
        "weight": options.get("weight", 1),
        "group": None if group is None else _document(group),
    }
    # A pool of an older version knows some of these fields, and takes a batch without the others.
    for name, value in options.items():
        if name not in document and value is not None:
            document[name] = _document(value) if isinstance(value, BaseModel | Mapping) else value
    return Call(
        method="POST",
        path="/v1/batches",
        headers=JSON | {"Idempotency-Key": idempotency_key},
        body=json_bytes(document),
        read=read_model(BatchAccepted),
    )


def status(batch_id: str) -> Call[BatchStatus]:
    """`GET /v1/batches/{id}`; the answer is where the batch stands."""
    return Call(method="GET", path=resource("batches", batch_id), read=read_model(BatchStatus))


def results(batch_id: str, cursor: str, *, wait: float) -> Call[ResultPage]:
    """`GET /v1/batches/{id}/results`: a page of up to 200 results behind `cursor`; "0" begins at the start.

    The pool may hold the request for `wait` seconds, until there is a result.
    """
    return Call(
        method="GET",
        path=f"{resource('batches', batch_id)}/results",
        params={"cursor": cursor, "limit": str(PAGE), "wait": f"{wait:g}"},
        read=read_model(ResultPage),
        # The pool may begin to answer only when `wait` is over.
        read_seconds=wait + READ_SECONDS,
    )


def cancel(batch_id: str) -> Call[None]:
    """`DELETE /v1/batches/{id}`; ends what has not ended, and has no answer to read."""
    return Call(method="DELETE", path=resource("batches", batch_id), read=_nothing)


def purge(batch_id: str) -> Call[BatchPurged]:
    """`DELETE /v1/batches/{id}?purge=true`; the batch must have ended, and the key must have the scope `admin`."""
    return Call(
        method="DELETE", path=resource("batches", batch_id), params={"purge": "true"}, read=read_model(BatchPurged)
    )


def rollout_view(rollout_id: str) -> Call[RolloutView]:
    """`GET /v1/rollouts/{id}`; takes the pool's uid or the caller's own id."""
    return Call(method="GET", path=resource("rollouts", rollout_id), read=read_model(RolloutView))


def cancel_rollout(rollout_id: str) -> Call[bool]:
    """`DELETE /v1/rollouts/{id}`; the answer tells whether the rollout was submitted already."""
    return Call(
        method="DELETE", path=resource("rollouts", rollout_id), read=lambda response: response.status_code != AWAITED
    )


def rollout_v1(request: RolloutRequest | Mapping[str, Any]) -> Call[RolloutResponse]:
    """`POST /rollout`; the answer comes when the rollout has ended, whether it completed or failed."""
    return Call(
        method="POST",
        path="/rollout",
        headers=JSON,
        body=json_bytes(_document(request)),
        read=read_model(RolloutResponse),
        read_seconds=V1_SECONDS,
    )


def tools() -> Call[list[ToolDefinition]]:
    """`GET /tools`; the answer lists the tools of all live workers."""
    return Call(
        method="GET",
        path="/tools",
        read=lambda response: _read(ToolsResponse, response).tools,
    )


def workers() -> Call[WorkersResponse]:
    """`GET /v1/workers`: what each worker announces of itself, oldest first, and the workers that nobody can read."""
    return Call(method="GET", path="/v1/workers", read=read_model(WorkersResponse))


def groups(batch_id: str) -> Call[list[Group]]:
    """`GET /v1/batches/{id}/groups`; the answer is empty for a batch without a group policy."""
    return Call(
        method="GET",
        path=f"{resource('batches', batch_id)}/groups",
        read=lambda response: _read(Groups, response).groups,
    )


def preflight(server_urls: Sequence[str]) -> Call[list[EndpointCheck]]:
    """`POST /v1/preflight`; the answer has one check per URL, in the same order."""
    return Call(
        method="POST",
        path="/v1/preflight",
        headers=JSON,
        body=json_bytes({"server_urls": list(server_urls)}),
        read=lambda response: _read(Preflight, response).endpoints,
    )


def dead_letters() -> Call[DeadLetters]:
    """`GET /v1/dead-letters`; the answer has the uids of rollouts and of pushes that were given up."""
    return Call(method="GET", path="/v1/dead-letters", read=read_model(DeadLetters))


def requeue(uid: str) -> Call[BatchAccepted]:
    """`POST /v1/dead-letters/{uid}/requeue`; the answer is a new batch with a copy of the rollout."""
    return Call(method="POST", path=f"{resource('dead-letters', uid)}/requeue", read=read_model(BatchAccepted))


def health() -> Call[Health]:
    """`GET /health`; the API answers it whatever the state of Redis and workers."""
    return Call(method="GET", path="/health", read=read_model(Health))


def readiness() -> Call[Ready | ErrorDetail]:
    """`GET /readyz`; a pool that is not ready is an answer too, and says why."""
    return Call(method="GET", path="/readyz", read=_readiness, answers=frozenset({503}))


def resource(kind: str, identity: str) -> str:
    """Makes the path of a batch, a rollout or a dead letter; its name may hold any character."""
    return f"/v1/{kind}/{quote(identity, safe='')}"


def json_bytes(document: Any) -> bytes:
    """Writes a body.

    Raises:
        ClientError: JSON has no form for something in it, such as an array's scalar or NaN; the message says where.
    """
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise errors.ClientError(f"{_place_of_fault(document)} cannot be JSON: {error}") from None
    # A lone surrogate is sent as it is, and the pool refuses it. Strict encoding would raise a UnicodeEncodeError here.
    return text.encode("utf-8", "surrogatepass")


def _place_of_fault(document: Any) -> str:
    """Names what in a document cannot be JSON, as deep as it can be told."""
    place, value = "the body", document
    for _ in range(_DEEPEST):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for name, part in pairs:
            try:
                json.dumps(part, allow_nan=False)
            except (TypeError, ValueError):
                place, value = f"{place}.{name}", part
                break
        else:
            break
    return place


def _document(value: object) -> Any:
    """Writes a value as JSON; of a model only what was set, so that the pool's defaults hold for the rest."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    # What is neither, such as a bare prompt, goes as it is: the pool says at which place it is wrong.
    return dict(value) if isinstance(value, Mapping) else value


def trainer_document(
    trainer: TrainerUrls | TrainerPorts | Mapping[str, Any] | Sequence[str] | None,
) -> dict[str, Any] | None:
    """Writes callback endpoints as the pool reads them; several URLs alone are `server_urls`."""
    if trainer is not None and not isinstance(trainer, BaseModel | Mapping):
        trainer = {"server_urls": list(trainer)}
    return None if trainer is None else _document(trainer)


def _nothing(response: httpx.Response) -> None:
    return None


def _readiness(response: httpx.Response) -> Ready | ErrorDetail:
    return _read(Ready, response) if response.is_success else _read(ErrorBody, response).error
