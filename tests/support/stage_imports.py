"""What a stage imports: by its inputs file and by what stands in sys.modules when it ends."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmark.runtime import code


def planned_code(project, subject: str, name: str) -> set[str]:
    """The files of code in the stage's inputs file."""
    (path,) = project.root.glob(f"work/*/inputs/{subject}/{name}.json" if subject else f"work/tiny/inputs/{name}.json")
    return {*json.loads(path.read_text())["code"]}


def really_imported(project, module: str, arguments: list[str]) -> set[str]:
    """Files of the project that a stage has in sys.modules when it ends, inert packages left out; without a wall, behind
    which what a submission imports would not be seen.
    """
    params = project.root / "params.yaml"
    text = params.read_text()
    params.write_text(text.replace("wall: full", "wall: none"))
    script = (
        "import runpy, sys, pathlib\n"
        f"sys.argv = {[module, *arguments]!r}\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=False)\n"
        "root = pathlib.Path.cwd()\n"
        "files = {pathlib.Path(m.__file__) for m in list(sys.modules.values()) if getattr(m, '__file__', None)}\n"
        "print('MODULES', *sorted(str(f.relative_to(root)) for f in files if f.is_relative_to(root)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=project.root, env=project.environment(), capture_output=True, text=True
    )
    params.write_text(text)
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("MODULES"))
    entry_file = module.replace(".", "/") + "/__main__.py"
    found = {name for name in line.split()[1:] if name.endswith(".py")} | {entry_file}
    return {name for name in found if not code.inert(project.root / name)}
