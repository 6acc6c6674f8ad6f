"""Penalties, one a file, each with `penalty`; benchmark/training/objective.py describes the interface."""
