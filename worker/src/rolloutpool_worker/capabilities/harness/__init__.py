"""Sessions of harnesses in a worker: programs that call the policy themselves.

- `session`: the agent of such a rollout, which answers the program's calls in its lines of talk.
- `lines`: which line of talk a call continues. `report`: what each line is, and what is trained of it.
- `runner`, a process of its own, starts programs. `presets` says how, `runtime` and `containers` where.
- `inbox`: how a process hears of new calls. `opened`: the capability's part of a process.
"""
