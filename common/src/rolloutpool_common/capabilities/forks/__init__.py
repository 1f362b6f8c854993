"""A rollout goes on from one of its turns, several times: `wire` asks for that, `origin` says where a fork began."""
