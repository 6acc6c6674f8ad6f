"""The static leaderboard: Records in, HTML out. It reads Records and specs, and runs nothing of the benchmark."""
