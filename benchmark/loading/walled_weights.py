"""Weights that were trained elsewhere, taken over in a process behind the wall; with no file given, it has the network."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmark.loading import methods
from benchmark.loading.confining import Wall, submission_files
from benchmark.loading.rows import Row
from benchmark.runtime.torch_setup import set_up
from benchmark.wall.channel import Tensors
from benchmark.wall.confinement import largest_weights

SECONDS = 3600.0  # that a download may take


def pretrained_walled(row: Row, path: Path | None, wall: Wall) -> Tensors:
    """The weights that the method's `pretrained` finds, in the file `path` or, over the network, elsewhere.

    Raises:
        BenchmarkError: as `methods.pretrained` does, or the process fails.
    """
    if not wall.stands:
        return _pretrained(row, path)
    process = wall.process(
        row,
        lambda channel: channel.send({}, _pretrained(row, path)),
        [*submission_files(row), *([path.absolute()] if path else [])],
        seconds=SECONDS,
        network=path is None,  # what it reads here stays here
    )
    with closing(process) as walled:
        return walled.receive(most=largest_weights())[1]


def _pretrained(row: Row, path: Path | None) -> Tensors:
    set_up("cpu")
    model = methods.pretrained(row.submission, row.variant, row.track, path)
    return {name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()}
