"""Engines in the API: `routes` hands out what they have said of ids besides log-probabilities."""
