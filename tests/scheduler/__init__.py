"""The scheduler's side, each part alone."""
