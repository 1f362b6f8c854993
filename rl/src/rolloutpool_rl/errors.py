"""Says what can go wrong with arrays, conversations and samples.

    RolloutPoolError
    └── RlError
        ├── MathsError               arrays that do not belong together
        │   ├── AttachmentForeign
        │   ├── ShapeMismatch
        │   └── MaskInvalid
        ├── MessagesRefused          a conversation that no role mask can be made for
        ├── ChoiceRefused            a reply whose tokens are not known for certain
        │   ├── ChoiceIncomplete
        │   ├── TokenUnknown
        │   └── PromptMismatch
        └── ExportRefused            a rollout that is no training data

A docstring is the default message. All errors can be pickled, because trainers send them between processes.
"""

from rolloutpool_common.errors import RolloutPoolError


class RlError(RolloutPoolError):
    """Something is wrong with the samples or the arrays."""


class MathsError(RlError, ValueError):
    """These arrays do not belong together."""


class ShapeMismatch(MathsError):
    """Arrays of different shapes were to be combined; broadcasting them would train the wrong tokens."""


class AttachmentForeign(MathsError):
    """An attachment belongs to other ids."""


class MaskInvalid(MathsError):
    """The mask cannot be used here."""


class MessagesRefused(RlError, ValueError):
    """No role mask can be made for this conversation."""


class ChoiceRefused(RlError, ValueError):
    """The reply does not say for certain which tokens were sampled."""


class ChoiceIncomplete(ChoiceRefused):
    """The reply lacks tokens or log-probabilities; ask the server for logprobs."""


class TokenUnknown(ChoiceRefused):
    """The reply names tokens that this tokenizer does not have."""


class PromptMismatch(ChoiceRefused):
    """The server rendered another prompt than this tokenizer does."""


class ExportRefused(RlError, ValueError):
    """This rollout cannot be exported as training data."""
