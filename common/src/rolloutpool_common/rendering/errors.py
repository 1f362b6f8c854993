"""Why text did not become ids.

    RolloutPoolError
    ├── TokenizerLoadFailed
    │   └── TokenizerLoadError        this tokenizer cannot be used, with the reason
    │       ├── TokenizerNotAllowed
    │       └── TemplateMissing
    ├── TemplateUnusable
    │   └── RenderTooCostly           the template takes too much time; no other form of the messages would help
    └── TemplateRefused               this conversation cannot be rendered exactly, with the reason
        ├── RenderFailed
        │   └── PartsRefused
        ├── HistoryRewritten
        ├── TurnEndNotFound
        ├── AssistantAppended
        └── ContentUnsafe
            └── TypedTextChanged

A refusal is a result: ids that cannot be proved are not guessed. Only the caller knows whether the request or the
policy is at fault. Reasons hold no text of a prompt: what a template's error quotes of it is taken out (`quotes`).
"""

from rolloutpool_common.errors import RolloutPoolError, TemplateUnusable, TokenizerLoadFailed


class TokenizerLoadError(TokenizerLoadFailed):
    """The tokenizer could not be loaded."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Tokenizer {name!r} cannot be used: {reason}")
        self.name = name
        self.reason = reason


class TokenizerNotAllowed(TokenizerLoadError):
    """The pool's settings do not allow this tokenizer."""


class TemplateMissing(TokenizerLoadError):
    """The tokenizer has no chat template."""


class TemplateRefused(RolloutPoolError):
    """The chat template cannot render this conversation exactly."""

    @property
    def reason(self) -> str:
        """Returns what the template did, and what would help."""
        return self.message


class RenderFailed(TemplateRefused):
    """The template raised an error."""


class PartsRefused(RenderFailed):
    """The content has a part that is no text. The policy has not sampled it."""


class RenderTooCostly(TemplateUnusable):
    """The template took more CPU time than a render may take. Not a TemplateRefused, so that nobody tries it again."""


class HistoryRewritten(TemplateRefused):
    """The template moves, merges or drops the new messages instead of appending them."""


class TurnEndNotFound(TemplateRefused):
    """The end of the policy's turn cannot be found in what the template renders."""


class AssistantAppended(TemplateRefused):
    """An assistant message cannot be appended as text: what the policy says is kept as the ids that it sampled."""


class ContentUnsafe(TemplateRefused):
    """The content would become control tokens, although it was typed."""


class TypedTextChanged(ContentUnsafe):
    """The template cuts, measures or changes text in which somebody typed a control string. The policy did not."""


WRITTEN_BY_OTHERS = (TypedTextChanged, PartsRefused)
"""Refusals of what a user, a tool or an environment has written."""
