"""What a pool can do beside running rollouts: one folder per capability, with its wire models, its keys and its Lua.

`composition` lists them, and is the only module outside that names one.
"""
