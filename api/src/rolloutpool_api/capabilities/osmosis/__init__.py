"""The Osmosis wire v3.3 in the API: `calls` answers them, `plan` makes a batch of one, `routes` has its own paths."""
