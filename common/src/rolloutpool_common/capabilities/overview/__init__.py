"""What is wrong in a pool now: `wire` has the answer of `GET /v1/overview`."""
