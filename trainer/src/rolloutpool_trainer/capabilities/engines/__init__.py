"""Engines in the client: reading what they have said of ids besides log-probabilities."""
