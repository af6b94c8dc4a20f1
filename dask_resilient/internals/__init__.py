"""The only room that names private parts of Dask: one module an intrusion, each with its undo and its contract test."""
