"""How a worker reads a chunk: between its watermarks, and only what is proven to be what was accepted."""
