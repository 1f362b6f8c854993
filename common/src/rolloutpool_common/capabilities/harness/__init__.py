"""Sessions of harnesses: programs that call their model themselves, trained as they are.

- `wire`: the fields of requests and results. `stored`: what of it is in Redis, and what the store does for it.
- `sessions`: the calls of a session, between the door that takes them and the worker that answers them.
- `keys`: the key by which a harness is known.
"""
