"""What is wrong in a pool now: `troubles` finds it, `routes` answers `GET /v1/overview`."""
