"""What each stage does first where $BESIDE names a folder: it says there that it began, and waits or fails as files there say."""

import os
import sys
import time
from pathlib import Path

if "BESIDE" in os.environ and "benchmark.protocol" in sys.orig_argv and len(sys.orig_argv) == 6:
    beside = Path(os.environ["BESIDE"])
    stage, _, row = sys.orig_argv[3:]
    with (beside / "begun").open("a") as begun:
        begun.write(f"{row.partition('-')[2]} {stage} {os.getpid()}\n")
    while (beside / f"hold-{stage}").exists():
        time.sleep(0.1)
    if (beside / f"break-{row.partition('-')[2]}-{stage}").exists():
        print(f"ERROR: {row} has no {stage}", flush=True)
        os._exit(1)
