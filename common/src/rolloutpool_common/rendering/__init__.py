"""Messages to ids and ids to text. The only place that touches a tokenizer; worker and trainer render alike here.

Needs the extra `rendering`. Importing this takes seconds (transformers): import it where it is needed.
"""

import os

# It advises to install PyTorch, on each import; tokenizers need none.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.rendering.cache import TokenizerCache
from rolloutpool_common.rendering.delta import Delta
from rolloutpool_common.rendering.drift import classify, verify_prompt_contains
from rolloutpool_common.rendering.errors import (
    AssistantAppended,
    ContentUnsafe,
    HistoryRewritten,
    RenderFailed,
    TemplateMissing,
    TemplateRefused,
    TokenizerLoadError,
    TokenizerNotAllowed,
    TurnEndNotFound,
)
from rolloutpool_common.rendering.loading import TINY, load_tokenizer
from rolloutpool_common.rendering.rerender import RerenderCounter, rerender
from rolloutpool_common.rendering.tokenizer import ChatTokenizer, RenderedConversation
from rolloutpool_common.tokens.entries import TokenizerFingerprint

__all__ = [
    "TINY",
    "AssistantAppended",
    "ChatTokenizer",
    "ContentUnsafe",
    "Delta",
    "DriftLabel",
    "HistoryRewritten",
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
    "classify",
    "load_tokenizer",
    "rerender",
    "verify_prompt_contains",
]
