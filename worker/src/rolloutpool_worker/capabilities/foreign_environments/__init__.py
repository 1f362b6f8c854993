"""Environments that others have written: behind servers, or in Python packages.

- `operators_file` makes environments of the operator's file. Start here.
- `http` speaks to resources servers in the form of NeMo Gym (through `server_calls`), `mcp` to MCP servers (`mcp_sdk`),
  `openenv` to those of OpenEnv (`websocket`). `connections` says which addresses may be called, and what bounds a call.
- `package` has environments that are Python packages (`skyrl_gym`, `gem`), each session in a thread (`session_thread`).
- `tool_servers` are MCP servers that rollouts of protocol v1 name, where the operator allows that.
- `settings` and `opened` are the capability's part of a worker.
"""
