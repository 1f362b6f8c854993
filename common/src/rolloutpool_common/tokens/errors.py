"""Says what can go wrong in a token ledger.

RolloutPoolError
└── LedgerError               a change would break an invariant; nothing was changed
    ├── LedgerMismatch        the journal is from another tokenizer, template or version of transformers
    ├── LedgerOrder           a call came out of order
    ├── LedgerCorrupt         the journal is not what a ledger wrote
    ├── TokenCountMismatch    not one log-probability per sampled id
    ├── BadTokenId            not an integer in 0 … 2**32 - 1
    └── BadLogprob            not a finite number
"""

from rolloutpool_common.errors import RolloutPoolError


class LedgerError(RolloutPoolError):
    """The token ledger refused a change that would break its invariants."""


class LedgerMismatch(LedgerError):
    """The journal was written with another tokenizer, template or transformers version."""


class LedgerOrder(LedgerError):
    """The ledger was written out of order."""


class LedgerCorrupt(LedgerError):
    """The journal is not what the ledger wrote."""


class TokenCountMismatch(LedgerError):
    """There are not as many log-probabilities as sampled ids."""


class BadTokenId(LedgerError):
    """A token id is not an integer in 0 … 2**32 - 1."""


class BadLogprob(LedgerError):
    """A log-probability is not a finite number."""
