"""The static leaderboard: records in, HTML out. Imports only `benchmark.records` and `benchmark.results.headline`."""
