"""A rollout goes on from one of its turns, several times: `wire` says what a trainer asks for."""
