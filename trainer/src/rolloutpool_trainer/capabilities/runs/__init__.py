"""Runs on the trainer's side: what the clients ask, what `submit` takes, and the commands."""
