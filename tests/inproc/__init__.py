"""One pool in one process: API, workers, trainer and Redis on one event loop, whose time and network are its own."""
