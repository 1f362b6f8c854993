"""The clients of the pool's API.

- `aio` is the client for asyncio, `aio_batch` its batches and their groups, `aio_stream` reads batch after batch;
  `sync`, `sync_batch` and so on, the blocking ones, are generated from them (`make generate`).
- `doors` says what batches and streams need of either client, and of an endpoint that can be paused.
- `calls` describes each call of the API once, for both.
- `views` describes those by which people look at batches, as `calls` does.
- `results` reads a batch's results, each once; `progress` shows how far it is.
- `groups` puts results into groups, and says what of a group can be trained; `refills` runs some of it again, by the
  `submission` that it came with.
- `stream_state` is what both streams know, `stream_cursor` how it is saved.
- `tally` adds results up for a logger.
- `retry` decides how long to go on asking; `transport` how to connect.
"""
