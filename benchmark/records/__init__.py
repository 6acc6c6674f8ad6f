"""What was measured: typed, frozen, to and from JSON."""
