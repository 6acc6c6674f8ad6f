"""What the parts of gpu.py share: a row of the report, and the time that is left."""

from __future__ import annotations

import json
import os
import time
from typing import Any

STARTED = time.monotonic()


def row(table: str, **columns: Any) -> None:
    """Print a row of the report."""
    print(json.dumps({"table": table, **columns}), flush=True)


def left(margin: float = 5.0) -> float:
    """Seconds until gpu.py ends this part, less a margin; a day where nothing ends it."""
    return float(os.environ.get("GPU_SECONDS", 86400)) - (time.monotonic() - STARTED) - margin
