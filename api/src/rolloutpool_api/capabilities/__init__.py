"""The API's part of each capability: its routes, and its checks of what is submitted. `composition` lists them."""
