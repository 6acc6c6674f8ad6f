"""The stages that DVC runs, one a file: `python -m benchmark.stages <stage> <track> <row>`."""
