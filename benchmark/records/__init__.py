"""Results: typed, frozen, to and from JSON."""
