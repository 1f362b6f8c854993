"""The clients of the pool's API.

- `aio` is the client for asyncio; `sync`, the blocking one, is generated from it (`make generate`).
- `calls` describes each call of the API once, for both.
- `views` describes those by which people look at batches, as `calls` does.
- `results` reads a batch's results, each once; `progress` shows how far it is.
- `retry` decides how long to go on asking; `transport` how to connect.
- `webhook` checks results that the pool pushed.
"""
