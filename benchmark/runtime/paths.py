"""Where things stand in a checkout."""

from __future__ import annotations

from pathlib import Path

WORK = Path("work")


PARAMS = Path("params.yaml")


PUBLISHED = Path("leaderboard/results")  # records and studies that git keeps
