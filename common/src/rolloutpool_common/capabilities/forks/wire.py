"""Says what a trainer asks for when a rollout is to go on from one of its turns: `POST /v1/rollouts/{id}/fork`.

A fork has its parent's first turns, token by token, and samples the rest itself. It runs with the parent's options,
except for what the request gives. Endpoint and key are always given anew.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rolloutpool_common.protocol.batch import Labels, Priority, TrainerPorts, TrainerUrls
from rolloutpool_common.protocol.checks import CallbackUrl, RolloutName, check_header_value


class ForkRequest(BaseModel):
    """One or more forks of one rollout."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    turn: int = Field(ge=1, le=101)
    """The first turn that the forks sample themselves, from 1."""
    n: int = Field(default=1, ge=1, le=1024)
    """How many forks; more than one are a group."""
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    """`sampling_params.seed` of the first fork (`sampling_seed` at SGLang); the next ones count on. Null sets none."""
    trainer: TrainerUrls | TrainerPorts | None = None
    """Where the policy is called, as in a batch; required unless `server_url` is given."""
    server_url: CallbackUrl | None = None
    """The same as one URL, in the parent's protocol."""
    callback_api_key: Annotated[str, AfterValidator(check_header_value)] | None = Field(
        default=None, max_length=4096, repr=False
    )
    """Bearer key of the endpoint; the parent's is not known any more."""
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    """Win over the parent's, key by key."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Wins over the parent's, key by key."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    """Turns in all, the parent's included."""
    max_tokens_total: int | None = Field(default=None, ge=1, le=1_000_000)
    """Sampled tokens in all, likewise."""
    deadline_seconds: float | None = Field(default=None, gt=0, le=604_800)
    """As in a batch; the parent's does not hold."""
    train_trunk: bool = False
    """Whether the parent's turns have mask 1 in the forks too; they have it in the parent's own samples."""
    rollout_id: RolloutName | None = None
    """The caller's name of the fork; with `n`, `-0`, `-1` … are added."""
    group: str | None = Field(default=None, min_length=1, max_length=256)
    """Null makes a name of the parent's uid and the turn, where there are several forks."""
    labels: Labels = Field(default_factory=dict)
    """As in a batch."""
    priority: Priority = Priority.DEFAULT
    """`high`, `default` or `low`."""
    run: str | None = Field(default=None, min_length=1, max_length=128)
    """The training run."""
