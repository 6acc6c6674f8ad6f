"""Stages on many machines: an engine that others keep carries the tasks, DVC's remote and run-cache carry the results."""
