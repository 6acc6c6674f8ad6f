"""The commands that DVC runs, one a file: `python -m benchmark.stages.<stage> ...`."""
