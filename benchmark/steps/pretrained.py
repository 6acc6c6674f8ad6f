"""Step `pretrained` of a row with `weights`: takes over weights that were trained elsewhere, and trains nothing."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import submissions
from benchmark.specs.rows import Row
from benchmark.specs.training import WeightsSpec
from benchmark.steps.base import Outcome, Step, Work

if TYPE_CHECKING:
    import torch

SECONDS = 3600.0  # for a download


class Pretrained(Step):
    """model.safetensors, where later steps look for trained weights."""

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
        check_file(self.declared, self.row)
        super().execute(again)

    def run(self, work: Work) -> Outcome:
        from safetensors.torch import save

        from benchmark.sandbox.confinement import largest_weights
        from benchmark.sandbox.submitted import in_force, in_words, run

        row, path = work.row, next(iter(self.reads), None)
        wall = in_words(in_force())  # read before the work: params.yaml may change meanwhile
        tensors = run(
            lambda _: _given_weights(row, path), lambda _: None, row.submission.name, seconds=SECONDS,
            most=largest_weights(), read=self.reads, network=path is None,  # a process with the network gets no checkpoint
        )  # fmt: skip
        weights = save(tensors)
        digest = files.sha256_bytes(weights)
        return Outcome(
            fields={
                "training": None,
                "sha256": {"weights": digest, "weights as given": files.sha256_file(path) if path else digest},
                "wall": wall,
            },
            files={"model.safetensors": weights},
            summary=f"{sum(t.numel() for t in tensors.values()):,} numbers taken over, none trained",
        )


def _given_weights(row: Row, path: Path | None) -> dict[str, torch.Tensor]:
    """Return the weights that the method's `pretrained` loads from the file `path`, or finds over the network."""
    from benchmark.runtime.torch_setup import set_up
    from benchmark.specs import methods

    set_up("cpu")
    model = methods.pretrained(row.submission, row.variant, row.track, path)
    weights = {name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()}
    methods.check_weights(model, row.submission, row.settings, row.track)
    return weights


def check_file(given: WeightsSpec, row: Row) -> None:
    """Raise BenchmarkError if the file is missing, lies in another submission's folder, or is not the pinned one."""
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
