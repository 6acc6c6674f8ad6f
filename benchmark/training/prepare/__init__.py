"""Preparations, one a file, each with `prepare`; benchmark/training/preparation.py describes the interface."""
