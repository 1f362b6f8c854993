"""The worker's part of each capability. `composition` lists them; `capability` says what one can do."""
