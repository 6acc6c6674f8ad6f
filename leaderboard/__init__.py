"""The static leaderboard: Records in, HTML out. Of the benchmark it imports what is recorded and specified, and runs nothing."""
