"""The static leaderboard: Records in, HTML out. Of the benchmark it reads Records and specs, and runs nothing."""
