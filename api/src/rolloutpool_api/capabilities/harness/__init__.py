"""Sessions of harnesses in the API: `routes` tells their owner the address and the key, and ends them.

- `door`: the application that programs call as their model, a process of its own (`python -m …harness`).
- `calls`: how a door has calls answered. `dialects`: the three ways in which programs call.
- `settings`: how one door runs.
"""
