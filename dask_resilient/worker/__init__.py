"""The worker's side: it saves in the background, loads on request, and tells the scheduler how both ended."""
