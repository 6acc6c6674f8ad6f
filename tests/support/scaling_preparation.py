"""A preparation of Tiny2026Linear for tests: it scales the weights, and may be killed between its two layers."""

from __future__ import annotations

from pathlib import Path

CODE = """\
import torch

OTHER_ARCHITECTURE = {other}


def prepare(model, start, train_split, place, *, factor: float = 0.5, kill: str = ""):
    assert not any(p.requires_grad for p in start.parameters())
    history = {{}}
    for name, parameter in model.named_parameters():

        def make(name=name):
            if name == kill:
                raise KeyboardInterrupt
            place.folder.mkdir(parents=True, exist_ok=True)
            with (place.folder / "worked.txt").open("a") as log:
                log.write(f"{{name}}\\n")
            return {{"weight": factor * start.state_dict()[name]}}, {{"images": len(train_split[0]), "drawn": torch.rand(()).item()}}

        kept, history[name] = place.kept(name, make)
        with torch.no_grad():
            parameter.copy_(kept["weight"])
    return history
"""


def install(*, other: bool = False) -> None:
    """Write it into the submission's folder in the working directory."""
    Path("submissions/Tiny2026Linear/scaling.py").write_text(CODE.format(other=other))


def worked(folder: Path) -> list[str]:
    """Return the layers that it has really worked on in a training in this folder, in order."""
    return (folder / "prepare/0-scaling/worked.txt").read_text().split()
