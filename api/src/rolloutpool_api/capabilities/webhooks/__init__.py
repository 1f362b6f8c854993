"""Webhooks in the API: `routes` has the results pushed again."""
