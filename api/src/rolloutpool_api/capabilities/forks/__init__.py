"""Forks in the API: `plan` makes a batch of a finished rollout's forks, `routes` takes the request."""
