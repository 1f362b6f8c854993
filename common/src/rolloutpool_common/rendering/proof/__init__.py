"""Proofs of what a chat template writes behind the policy's turn. `prover` says how."""

from rolloutpool_common.rendering.proof.claims import JsonWord, NewMessage, Proof, Reason, Source, TurnShape, Word
from rolloutpool_common.rendering.proof.prover import prove

__all__ = ["JsonWord", "NewMessage", "Proof", "Reason", "Source", "TurnShape", "Word", "prove"]
