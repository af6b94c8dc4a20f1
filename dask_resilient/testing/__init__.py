"""What tests of this package, and of anything plugged into it, may use: faults on demand."""
