"""Penalties, one a file, each with `penalty`; benchmark/training/penalty.py describes the interface."""
