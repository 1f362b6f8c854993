"""The Osmosis wire in a worker: its controllers answer with messages alone.

- `channel` asks a controller for a turn. `policy` plans and asks the turns of a rollout, whose ledger stays empty.
- `opened` is the capability's part of a process.
"""
