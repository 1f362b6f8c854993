"""Who may call the pool (`api_keys`), and which hosts the pool may call (`targets`)."""
