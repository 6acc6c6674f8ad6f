"""What DVC runs: `python -m benchmark.stages <stage> <track> [<row, or study>]`.

Where `rvb repro` holds a warm process (benchmark/pipeline/warm.py), that one forks and does the work, with this
process's output and exit status; else it is done here.
"""

from __future__ import annotations

import importlib
import sys

from benchmark.runtime import warm_client


def main(name: str, *subject: str) -> None:
    """Imports the stage's own file and no other stage's."""
    from benchmark.loading.run_settings import run_settings
    from benchmark.runtime import arithmetic

    arithmetic.fix(run_settings().arithmetic)
    importlib.import_module(f"benchmark.stages.{name.partition('-')[0]}").stage.execute(name, *subject)


if __name__ == "__main__":
    warm_client.run_there(sys.argv[1:])
    from benchmark.runtime import errors  # which takes longer to import than to hand a stage over

    errors.run(lambda: main(*sys.argv[1:]))
