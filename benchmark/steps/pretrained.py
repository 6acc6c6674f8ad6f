"""Step `pretrained` of a row with `weights`: takes over weights that were trained elsewhere, and trains nothing."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import submissions
from benchmark.specs.rows import Row
from benchmark.specs.training import WeightsSpec
from benchmark.steps.base import Outcome, Step, Work

if TYPE_CHECKING:
    import torch

SECONDS = 3600.0  # that a download may take


class Pretrained(Step):
    """model.safetensors, where later stages look for trained weights."""

    declared_in = "settings.weights"
    refusal = "{row} is trained here; run `rvb step train {row}`"

    @property
    def slow(self) -> list[str]:
        return ["benchmark.sandbox.submitted", "torch._dynamo"]

    @property
    def folder(self) -> Path:
        return self.row.folder / "train"

    @property
    def reads(self) -> list[Path]:
        return [Path(self.declared.path)] if self.declared.path else []

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("torch", "timm", "robustbench")}

    def execute(self, again: bool = False) -> None:
        _check(self.declared, self.row)
        super().execute(again)

    def run(self, work: Work) -> Outcome:
        from safetensors.torch import save

        from benchmark.runtime import files
        from benchmark.sandbox.confinement import largest_weights
        from benchmark.sandbox.submitted import in_force, in_words, start

        row, parts, path = work.row, in_force(), next(iter(self.reads), None)
        if not parts:
            found = _found(row, path)
        else:
            process = start(
                lambda channel: channel.send({}, _found(row, path)), parts, row.submission.name,
                seconds=SECONDS, read=[path] if path else [], network=path is None,  # what it reads here stays here
            )  # fmt: skip
            with process:
                found = process.receive(most=largest_weights())[1]
        weights = save(found)
        digest = files.sha256_bytes(weights)
        return Outcome(
            fields={
                "training": None,
                "sha256": {"weights": digest, "weights as given": files.sha256_file(path) if path else digest},
                "wall": in_words(parts),
            },
            files={"model.safetensors": weights},
            summary=f"{sum(t.numel() for t in found.values()):,} numbers taken over, none trained",
        )


def _found(row: Row, path: Path | None) -> dict[str, torch.Tensor]:
    """The weights that the method's `pretrained` finds, in the file `path` or elsewhere, over the network."""
    from benchmark.runtime.torch_setup import set_up
    from benchmark.specs import methods

    set_up("cpu")
    model = methods.pretrained(row.submission, row.variant, row.track, path)
    return {name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()}


def _check(given: WeightsSpec, row: Row) -> None:
    """Raises BenchmarkError: the file is missing, lies in another submission's folder, or is not the one pinned."""
    from benchmark.runtime import files

    if given.path is None:
        return
    path, own = Path(given.path), submissions.FOLDER / row.submission.name
    # a link in weights/ is the user's own; one in a submission could lead anywhere
    if path.parts[0] != "weights" and not path.resolve().is_relative_to(own.resolve()):
        raise BenchmarkError(f"{row.name}: its weights {path} lie outside {own}; put them there, or into weights/")
    if not path.is_file():
        raise BenchmarkError(f"{row.name}: its weights {path} are missing; put the checkpoint there")
    digest = files.sha256_file(path)
    if given.sha256 not in (None, digest):
        raise BenchmarkError(
            f"{row.name}: its weights {path} have sha256 {digest}, submission.yaml pins {given.sha256}; restore the file"
        )


step = Pretrained
