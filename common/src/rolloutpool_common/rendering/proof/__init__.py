"""Proofs of what a chat template writes behind the policy's turn. `prover` says how, and `claims` what they say."""
