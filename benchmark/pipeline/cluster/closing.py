"""The end of a run on many machines: its results here, and the board.

Not by `dvc repro --pull`, which goes through every stage of the repository for each one whose results it brings (measured:
0.8 core-seconds a row at 30 rows, 1.25 at 200).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmark.loading.rows import Row
from benchmark.pipeline import dvc, generate, inputs, partial_board
from benchmark.pipeline.cluster import remote
from benchmark.pipeline.locks import put_in_order
from benchmark.pipeline.repro import refresh_times
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.stages import catalogue

Report = Callable[[str], None]


@contextmanager
def bringing(report: Report) -> Iterator[Callable[[Row], None]]:
    """Gives what brings the results of a row here that has ended, beside the run, so that little is left at its end."""

    def bring(row: Row) -> None:
        try:
            remote.bring(_stages(row), report, patience=0.0)
        except BenchmarkError as error:
            report(f"{row.name}: its results are fetched at the end, {error}")

    def bring_later(row: Row) -> None:
        pool.submit(bring, row)

    pool = ThreadPoolExecutor(1)
    try:
        yield bring_later
        pool.shutdown()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _stages(row: Row) -> list[str]:
    file = generate.row_file(row.track.name, row.name)
    return [f"{file}:{one.name}" for one in catalogue.plan(row)]


def check_unedited(track: str) -> None:
    """A BenchmarkError where code or settings are others than the machines': DVC would compute here what they change."""
    for path, content in inputs.contents(track).items():
        if not path.exists() or path.read_bytes() != files.to_json(content):
            raise BenchmarkError(
                f"{path} would change: code or settings were edited while the machines worked; what they made is kept: "
                "commit the edits or put them away, and run the same command again"
            )


def close(
    track: str,
    chosen: Sequence[Row],
    boards: Sequence[Path],
    failed: Mapping[str, str],
    keep_going: bool,
    report: Report,
) -> None:
    """Brings the results here and renders the board; a BenchmarkError that names the rows which failed."""
    everything = generate.board_file(track, True) in boards
    for row in chosen:
        put_in_order(generate.row_file(track, row.name))
    stand = [row.name for row in chosen if row.name not in failed]
    if made := [stage for row in chosen if row.name not in failed for stage in _stages(row)]:
        remote.bring(made, report)
    if failed or not boards:
        if stand:
            dvc.run(["repro", *(str(generate.row_file(track, name)) for name in stand)], f"{track}-close", report)
        if failed:
            if keep_going and stand and boards:
                partial_board.render(track, stand, failed, everything, report)
            raise partial_board.missing(failed, len(chosen), hint=bool(stand and boards) and not keep_going)
    for board in boards:
        dvc.run(["repro", str(board)], f"{track}-board", report)
    put_in_order(generate.data_file(track))
    for board in boards:
        refresh_times(track, board == generate.board_file(track, True))
    where = generate.board_folder(track, everything) / "site" / "index.html"
    report(f"done: open {where}" if boards else "done")
