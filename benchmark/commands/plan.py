"""`rvb plan`: what each step of a row took when it last ran."""

from __future__ import annotations

from benchmark.commands.terminal import AllOption, RowsArgument, TrackOption, console
from benchmark.runtime.errors import BenchmarkError


def plan(rows: RowsArgument = None, track: TrackOption = "digits", everything: AllOption = False) -> None:
    """Print what each step took when it last ran here or was published: seconds, core-seconds, GPU-seconds, GPU memory."""
    if rows and everything:
        raise BenchmarkError("--all stands for every row; leave out the rows")
    from rich.table import Table

    from benchmark import protocol
    from benchmark.pipeline.costs import costs
    from benchmark.pipeline.repro import chosen_rows

    table = Table(box=None, pad_edge=False)
    for heading in ("row, step", "seconds", "core-seconds", "GPU-seconds", "GPU memory"):
        table.add_column(heading, justify="left" if heading == "row, step" else "right", no_wrap=True)
    sums, unknown = [0.0, 0.0], 0
    for row in chosen_rows(track, rows or (), everything)[0]:
        table.add_row(row.name, style="bold")
        known = costs(row)
        for one in protocol.plan(row):
            cost = known.get(one.name, {})
            unknown += not cost
            shown = [cost.get(key) for key in ("wall_seconds", "core_seconds", "device_seconds")]
            sums = [total + (much or 0.0) for total, much in zip(sums, shown, strict=False)]
            memory = f"{cost['device_memory'] / 2**20:.0f} MiB" if cost.get("device_memory") else ""
            table.add_row(f"  {one.name}", *("" if much is None else f"{much:.0f}" for much in shown), memory)
    console.print(table)
    console.print(f"together {sums[0]:.0f} s, {sums[1]:.0f} core-seconds, one row after another")
    if unknown:
        console.print(f"{unknown} step{'s' if unknown > 1 else ''} never ran here, and no published time is known")
