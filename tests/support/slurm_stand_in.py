"""A stand-in for SLURM, as `sbatch` and `squeue`: it runs the elements of an array one after another, as soon as it is sent.

An element runs where its dependencies let it: `aftercorr` where the same element of the other array ended with 0, `afterany`
whenever that array has ended. It asks for nothing that an array of SLURM would not have, and knows no other options.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SBATCH = """\
#!{python}
import json, os, pathlib, re, subprocess, sys

KNOWN = {{"job-name", "array", "ntasks", "cpus-per-task", "mem", "time", "gpus-per-task", "requeue", "kill-on-invalid-dep", "output"}}
home = pathlib.Path({home!r})
assert sys.argv[1] == "--parsable", sys.argv
script = sys.argv[-1]
dependency = "".join(sys.argv[2:-1]).removeprefix("--dependency=")
lines = pathlib.Path(script).read_text().splitlines()
options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", "\\n".join(lines), re.MULTILINE))
if (home / "refuse").exists():
    sys.exit("sbatch: error: QOSMaxSubmitJobPerUserLimit")
assert lines[0] == "#!/bin/bash" and {{*options}} <= KNOWN, options
assert re.fullmatch(r"\\d+:[0-5]\\d:00", options["time"]) and options["time"] != "0:00:00"
number = 101 + len([*home.glob("*.json")])
ended = {{}}
for index in range(int(options["array"].removeprefix("0-")) + 1):
    runs = True
    for one in dependency.split(",") if dependency else []:
        kind, _, other = one.partition(":")
        earlier = json.loads((home / f"{{other}}.json").read_text())
        assert kind in ("aftercorr", "afterany"), kind
        runs &= kind == "afterany" or earlier.get(str(index)) == 0
    if runs:
        with open(options["output"].replace("%a", str(index)), "w") as log:
            log.write("by a stand-in for SLURM\\n")
            log.flush()
            seen = {{**os.environ, "SLURM_ARRAY_TASK_ID": str(index)}}
            ended[index] = subprocess.run(["bash", script], env=seen, stdout=log, stderr=log).returncode
(home / f"{{number}}.json").write_text(json.dumps(ended))
print(f"{{number}};cluster")
"""
SQUEUE = """\
#!/bin/sh
cat {home}/queue
"""


class Slurm:
    """The stand-in, in a folder of its own; it says of each array how its elements ended."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "bin").mkdir(parents=True)
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
            program = home / "bin" / name
            program.write_text(text.format(python=sys.executable, home=str(home)))
            program.chmod(0o755)
        self.queue()

    def queue(self, *numbers: str) -> None:
        """What squeue says from now on."""
        (self.home / "queue").write_text("".join(f"{number}\n" for number in numbers))

    def refuse(self) -> None:
        (self.home / "refuse").touch()

    @property
    def path(self) -> str:
        return f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"
