"""What a shell completes: names of rows and of tracks, as the checkout has them.

Outside a checkout, and where a submission does not load, nothing is completed and nothing said: a shell has no place for it.
"""

from __future__ import annotations

from contextlib import suppress

import typer

from benchmark.runtime.errors import BenchmarkError

VARIABLE = "_RVB_COMPLETE"  # set by the shell where it asks


def row_names(context: typer.Context, incomplete: str) -> list[str]:
    """Rows of the track that --track names, but for those already given."""
    from benchmark.loading import submissions

    given = context.params.get("rows") or ()
    with suppress(BenchmarkError):
        rows = submissions.rows(context.params.get("track") or "digits")
        found = (f"{submission.name}-{variant}" for submission, variant in rows)
        return [name for name in found if name.startswith(incomplete) and name not in given]
    return []


def track_names(incomplete: str) -> list[str]:
    from benchmark.loading import tracks

    return [name for name in tracks.names() if name.startswith(incomplete)]
