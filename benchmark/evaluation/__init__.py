"""Running attacks on a model, deciding its division, and counting the evidence."""
