"""Every decision, as pure functions over plain values.

Standard library only; no clock, no I/O, no Dask. Time and settings are arguments.
"""
