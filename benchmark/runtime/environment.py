"""What a result can depend on, beside code and settings."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from benchmark.runtime import arithmetic


def environment() -> dict[str, str]:
    """Versions and arithmetic that a result can depend on. No host name, no date, no processor."""
    packages = (
        "torch",
        "torchvision",
        "timm",
        "pyautoattack",
        "robustbench",
        "foolbox",
        "numpy",
        "scipy",
        "robust-vit-bench",
    )
    found = {name: version(name) for name in packages}
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "arithmetic": arithmetic.in_force(),
        "threads": os.environ.get("OMP_NUM_THREADS", "1"),  # as torch_setup has it
        **found,
    }
