"""Messages to ids, and ids to text. Only this room touches a tokenizer, so worker and trainer render alike.

- `tokenizer` is a tokenizer with its chat template; `loading` loads one, `cache` keeps some, `errors` says why not.
- `template` renders text; `control_tokens` marks what must not become a control token, and proves that the marks
  changed nothing; `codec` and `vocabulary` encode.
- `delta` is the rule for what a template writes behind a turn: a `sentinel` in its place, cut at the `turn_end`.
  `short_cuts` makes most deltas for less, where `proof` reads in the template that they are the same.
- `rerender` counts what a trainer gets that renders the whole history again; `drift` names how that differs.
- `parsing` makes messages of sampled text.
- `checks` finds out what a tokenizer's template does.

Needs the extra `rendering`, and raises `MissingExtra` without it. The import takes seconds because of transformers, so
import it only where it is needed.
"""

import os

# It advises to install PyTorch, on each import; tokenizers need none.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from rolloutpool_common.errors import MissingExtra

try:
    from rolloutpool_common.protocol.drift import DriftLabel
    from rolloutpool_common.rendering.cache import TokenizerCache
    from rolloutpool_common.rendering.delta import Delta
    from rolloutpool_common.rendering.drift import classify, verify_prompt_contains
    from rolloutpool_common.rendering.errors import (
        WRITTEN_BY_OTHERS,
        AssistantAppended,
        ContentUnsafe,
        HistoryRewritten,
        PartsRefused,
        RenderFailed,
        TemplateMissing,
        TemplateRefused,
        TokenizerLoadError,
        TokenizerNotAllowed,
        TurnEndNotFound,
        TypedTextChanged,
    )
    from rolloutpool_common.rendering.loading import TINY, load_tokenizer
    from rolloutpool_common.rendering.parsing.found import ParsedTurn
    from rolloutpool_common.rendering.parsing.turn_parser import TurnParser
    from rolloutpool_common.rendering.rerender import RerenderCounter, rerender
    from rolloutpool_common.rendering.tokenizer import ChatTokenizer, RenderedConversation
    from rolloutpool_common.rendering.turn_end import SAMPLED_TAIL
    from rolloutpool_common.tokens.entries import TokenizerFingerprint
except ModuleNotFoundError as error:
    raise MissingExtra.needed("a tokenizer", error.name or "another module") from error

__all__ = [
    "SAMPLED_TAIL",
    "TINY",
    "WRITTEN_BY_OTHERS",
    "AssistantAppended",
    "ChatTokenizer",
    "ContentUnsafe",
    "Delta",
    "DriftLabel",
    "HistoryRewritten",
    "ParsedTurn",
    "PartsRefused",
    "RenderFailed",
    "RenderedConversation",
    "RerenderCounter",
    "TemplateMissing",
    "TemplateRefused",
    "TokenizerCache",
    "TokenizerFingerprint",
    "TokenizerLoadError",
    "TokenizerNotAllowed",
    "TurnEndNotFound",
    "TurnParser",
    "TypedTextChanged",
    "classify",
    "load_tokenizer",
    "rerender",
    "verify_prompt_contains",
]
