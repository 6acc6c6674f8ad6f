"""A track's pending stages as job arrays of SLURM: scripts that a reader can check and send.

One array a stage, an element a row: element i of a stage waits for element i of the stages that it reads (`aftercorr`).
Rows that take the same resources share arrays; rows that start from another row's weights come after all of those. The run's
folder has to be on a file system that all machines share: there the elements leave their answers, with what DVC noted.
"""

from __future__ import annotations

import getpass
import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.pipeline.cluster import orders, site
from benchmark.pipeline.cluster.orders import Answer
from benchmark.pipeline.cluster.pieces import Piece, stage_key
from benchmark.pipeline.cluster.resources import Resources
from benchmark.pipeline.cluster.site import Shipment
from benchmark.pipeline.locks import put_entries
from benchmark.pipeline.schedule import Task
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import WORK

LARGEST = 1000  # elements of an array: SLURM's default is 1,001
SENT = "jobs"  # file of a run's folder: the arrays that were sent
Report = Callable[[str], None]
Tasks = Mapping[str, Task[Piece]]


@dataclass(frozen=True)
class Array:
    """One stage of several rows, or a part of it: `keys` has that of each, None where a row has none left to do."""

    name: str
    stage: str
    needs: Resources
    keys: tuple[str | None, ...]
    follows: tuple[str, ...]  # arrays of the same rows, element by element
    after: tuple[str, ...]  # arrays of other rows, whole


def folder(track: str) -> Path:
    return WORK / "slurm" / track


def arrays(tasks: Tasks, needs: Mapping[str, Resources]) -> list[Array]:
    """The arrays, each after those that it waits for."""
    found: list[Array] = []
    holds: dict[str, str] = {}  # array by stage
    for number, rows in enumerate(_groups(tasks, needs)):
        of_row = {row: [key for key, task in tasks.items() if task.what.row.name == row] for row in rows}
        stages = dict.fromkeys(tasks[key].what.name for row in rows for key in of_row[row])
        for place, stage in enumerate(sorted(stages, key=lambda name: _depth(tasks, of_row, name))):
            keys = tuple(next((key for key in of_row[row] if tasks[key].what.name == stage), None) for row in rows)
            own = [key for key in keys if key]
            earlier = {holds[other] for key in own for other in tasks[key].after & tasks.keys()}
            same = {one.name for one in found if one.name.startswith(f"{number:02}-")}
            name = f"{number:02}-{place:02}-{stage}"
            follows, after = tuple(sorted(earlier & same)), tuple(sorted(earlier - same))
            found.append(Array(name, stage, needs[own[0]], keys, follows, after))
            holds |= dict.fromkeys(own, name)
    return found


def _groups(tasks: Tasks, needs: Mapping[str, Resources]) -> Iterator[list[str]]:
    """Rows that share arrays: of one generation, with the same resources stage by stage."""
    generations: dict[str, int] = {}
    takes: dict[str, dict[str, Resources]] = {}  # by row, stage by stage
    for key, task in tasks.items():  # a row's source stands before it
        row = task.what.row.name
        takes.setdefault(row, {})[task.what.name] = needs[key]
        sources = {tasks[key].what.row.name for key in task.after & tasks.keys()} - {row}
        generations[row] = max([generations.get(row, 0), *(generations[one] + 1 for one in sources)])
    groups: dict[tuple[object, ...], list[str]] = {}
    for row in sorted(generations, key=lambda row: (generations[row], -len(takes[row]))):  # with most stages first
        own = (generations[row], *takes[row].items())
        known = next((k for k in groups if k[0] == own[0] and _agree(dict(k[1:]), takes[row])), own)  # type: ignore[arg-type]
        groups.setdefault(known, []).append(row)
    for rows in groups.values():
        yield from (rows[start : start + LARGEST] for start in range(0, len(rows), LARGEST))


def _agree(one: Mapping[str, Resources], other: Mapping[str, Resources]) -> bool:
    return all(one[stage] == takes for stage, takes in other.items() if stage in one) and {*other} <= {*one}


def _depth(tasks: Tasks, of_row: Mapping[str, Sequence[str]], stage: str) -> int:
    """How many stages of the same row have to come first, at most."""

    def depth(key: str, own: Sequence[str]) -> int:
        return max((1 + depth(other, own) for other in tasks[key].after if other in own), default=0)

    return max(depth(key, own) for own in of_row.values() for key in own if tasks[key].what.name == stage)


def write(
    track: str, tasks: Tasks, needs: Mapping[str, Resources], reads: Mapping[str, Sequence[str]], sent: Shipment
) -> list[Array]:
    """Writes the scripts, the files that they need, and `submit.sh`, which sends them."""
    run = folder(track).absolute()
    shutil.rmtree(run, ignore_errors=True)
    for name in ("orders", "answers", "logs"):
        (run / name).mkdir(parents=True)
    run.chmod(0o700)  # DVC's settings may hold passwords
    files.write(run / "files.tar", sent.archive)
    shutil.copy(Path(site.__file__), run / "task.py")
    about = {"commit": sent.commit, "config": sent.config, "variables": sent.variables}
    files.write_json(run / "shipment.json", about)
    (run / "shipment.json").chmod(0o600)
    made = arrays(tasks, needs)
    lines = [
        "#!/bin/bash",
        f"# {len(tasks)} stages of {track} at commit {sent.commit[:12]}; sends them and ends.",
        "set -eu",
        f'send() {{ job=$(sbatch --parsable "$@") || exit 1; echo "${{job%%;*}}" | tee -a {shlex.quote(str(run / SENT))}; }}',
    ]
    for one in made:
        texts = [_order(tasks, key, reads) if key else None for key in one.keys]
        files.write_json(run / "orders" / f"{one.name}.json", texts)
        files.write(run / f"{one.name}.sbatch", _script(run, track, one))
        script = shlex.quote(str(run / f"{one.name}.sbatch"))
        lines.append(f"{_variable(one.name)}=$(send{_dependency(one)} {script})")
    lines.append(f'echo "sent {len(made)} arrays"')
    files.write(run / "submit.sh", "\n".join(lines) + "\n")
    return made


def _order(tasks: Tasks, key: str, reads: Mapping[str, Sequence[str]]) -> str:
    piece = tasks[key].what
    return orders.order(key, piece, reads[stage_key(key)]).to_json()


def _script(run: Path, track: str, array: Array) -> str:
    needs = array.needs
    hours, minutes = divmod(math.ceil(needs.minutes), 60)
    gpus = f"#SBATCH --gpus-per-task={max(1, round(needs.gpus))}\n" if needs.gpus else ""
    rows = "".join(f"#  {place}: {key or 'nothing to do'}\n" for place, key in enumerate(array.keys))
    return f"""#!/bin/bash
#SBATCH --job-name=rvb-{track}-{array.name}
#SBATCH --array=0-{len(array.keys) - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={needs.cores}
#SBATCH --mem={round(needs.memory * 1024)}M
#SBATCH --time={hours}:{minutes:02}:00
{gpus}#SBATCH --requeue
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --output={run / "logs" / array.name}-%a.log
{rows}exec {shlex.quote(sys.executable)} {shlex.quote(str(run / "task.py"))} {array.name} "$SLURM_ARRAY_TASK_ID"
"""


def _dependency(array: Array) -> str:
    parts = [f"aftercorr:${{{_variable(name)}}}" for name in array.follows]
    parts += [f"afterany:${{{_variable(name)}}}" for name in array.after]
    return f' --dependency="{",".join(parts)}"' if parts else ""


def _variable(name: str) -> str:
    return "job_" + "".join(letter if letter.isalnum() else "_" for letter in name)


def ended(track: str) -> bool:
    """Whether arrays were sent since this was asked last; a BenchmarkError while one of them waits or runs."""
    sent = folder(track) / SENT
    if not sent.exists():
        return False
    if not shutil.which("squeue"):
        raise BenchmarkError(
            f"arrays were sent, and squeue is not installed here: run this where it is, or remove {sent} once they have ended"
        )
    command = ["squeue", "--noheader", "--format=%F", f"--user={getpass.getuser()}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"squeue failed: {' '.join(done.stderr.split())}")
    if left := {*sent.read_text().split()} & {*done.stdout.split()}:
        raise BenchmarkError(
            f"{len(left)} of the job arrays that were sent have not ended; wait, or run: scancel {' '.join(sorted(left))}"
        )
    sent.unlink()
    return True


def collect(track: str, report: Report) -> dict[str, str]:
    """Notes the answers of elements that have ended, as DVC would; by stage that failed: why."""
    failed: dict[str, str] = {}
    for path in sorted((folder(track) / "answers").glob("*.json")):
        answer = Answer.from_json(path.read_text())
        file, _, stage = answer.key.rpartition(":")
        row = Path(file).parent.name
        if answer.error:
            failed[answer.key] = answer.error
            continue
        if answer.entry:  # nothing is noted of a part
            put_entries({answer.key: answer.entry})
        if answer.times:
            files.write(WORK / track / row / "times" / f"{stage}.json", answer.times)
        path.unlink()
    for key, why in failed.items():
        report(f"{key}: {why}")
    return failed


def submit(track: str) -> str:
    """Sends the arrays; what sbatch says. A BenchmarkError where SLURM is not there or refuses one."""
    if not shutil.which("sbatch"):
        raise BenchmarkError(
            f"sbatch is not installed here; on a machine of the cluster that has it, run: bash {folder(track) / 'submit.sh'}"
        )
    done = subprocess.run(["bash", str(folder(track) / "submit.sh")], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"sbatch refused: {' '.join(done.stderr.split())}; arrays sent before stand in squeue")
    return done.stdout.strip()
