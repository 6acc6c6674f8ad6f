"""What a result can depend on, beside code and settings."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from benchmark.runtime import arithmetic


def environment() -> dict[str, str]:
    """Versions and arithmetic that a result can depend on. No host name, no date, no processor.

    Packages that are not installed are left out: stages need neither DVC nor robustbench.
    """
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
    versions = {name: installed(name) for name in packages}
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "arithmetic": arithmetic.in_force(),
        "threads": os.environ.get("OMP_NUM_THREADS", "1"),  # as torch_setup has it
        **{name: version for name, version in versions.items() if version},
    }


def installed(package: str) -> str:
    """Return the version of a package; "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
