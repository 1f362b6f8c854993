"""Who may call the pool, and whom the pool may call: `api_keys` and `targets`."""
