"""Says what commands show of webhooks."""

COUNTS = {"pushes": "delivery"}
"""In the state of a batch: by the word that stands there, the field of `BatchStatus`."""
LETTERS = {"push": "pushes"}
"""Among dead letters: by the word that stands in front of a uid, the field of `DeadLetters`."""
