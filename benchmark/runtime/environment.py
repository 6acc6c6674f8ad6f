"""Versions that a result can depend on."""

from __future__ import annotations

import platform
from importlib.metadata import version


def environment() -> dict[str, str]:
    """Versions that a result can depend on. No host name, no date."""
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
    return {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine(), **found}
