"""Says what a trainer has of each capability: calls, methods of a batch, commands. `composition` lists them."""
