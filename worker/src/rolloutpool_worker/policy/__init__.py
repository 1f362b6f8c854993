"""How a trainer is asked for a turn.

| module | what it is |
| --- | --- |
| `asking` | what an attempt asks its policy with |
| `callback` | one rollout's way to its trainer: writes a turn's request, repeats a failed call, parses the reply |
| `body` | a turn's request body and its digest |
| `endpoint` | one call to a trainer, and our error for each way in which it can fail |
| `reply` | a reply, parsed and checked |
| `foreign_reply` | a reply that says itself that it belongs to another request |
| `repeated_echo` | the ids of a prompt that a reply repeats are not read again |
| `idempotence` | which trainers may be asked the same turn again |
| `breaker` | keeps rollouts away from a port that refuses connections |
| `turn_client` | the seam of one call, and the way through httpx |
| `http1` | one request and its reply by HTTP/1.1: the way of each turn |
| `connection` | one connection, by which one request at a time is sent |
| `deadlines` | limits of calls, for less than a timer each |
| `transport` | httpx' API over aiohttp's connections, for all that is no turn |
| `certificates` | what verifies those of trainers |
| `keepalive` | sockets whose other side is probed |
| `resolver` | which addresses may be called |
| `aiohttp_compat` | what we use of aiohttp beyond its documented interface |
"""
