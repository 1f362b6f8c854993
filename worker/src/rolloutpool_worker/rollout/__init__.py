"""One attempt at one rollout: `attempt` claims, runs and finishes it, `admission` checks its result."""
