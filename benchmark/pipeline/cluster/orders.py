"""What a worker is asked to do, and what it answers: plain values, so that any engine and any file can carry them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmark.pipeline.cluster import node
from benchmark.pipeline.cluster.pieces import Piece, stage_key
from benchmark.pipeline.locks import entry_of
from benchmark.stages.base import inputs_file

Entry = dict[str, Any]  # of a dvc.lock


@dataclass(frozen=True)
class Order:
    """One stage, `<dvc.yaml>:<name>`, or a part of it, with `@<first>-<end>` behind that.

    Attributes:
        inputs: text of its inputs file, which says by which code and settings it is to run.
        packages: by which it is to run (node.py).
        reads: the stages whose results it reads.
        locks: what DVC noted of those, by stage: with it a worker finds their results in the remote.
        part: the images that it works on; "" for a whole stage.
        parts: those of a whole stage whose work has been done already.
    """

    key: str
    track: str
    row: str
    stage: str
    inputs: str
    reads: tuple[str, ...]
    locks: Mapping[str, Entry] = field(default_factory=dict)
    part: str = ""
    parts: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def stage_key(self) -> str:
        return stage_key(self.key)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        found = json.loads(text)
        return cls(**{**found, "reads": tuple(found["reads"]), "parts": tuple(found["parts"])})


@dataclass(frozen=True)
class Answer:
    """How it went.

    Attributes:
        key: the stage.
        entry: what DVC noted of the stage, whose results stand in the remote; nothing for a part.
        times: its times file; "" where it was found in the run-cache.
        error: one line; "" where all went well.
        lost: it did not fail by itself: it was killed, ran out of memory, or its machine went.
        device: on what it computed.
        seconds: of the worker, with fetching and pushing.
        log: what the stage printed.
    """

    key: str = ""
    entry: Entry = field(default_factory=dict)
    times: str = ""
    error: str = ""
    lost: bool = False
    device: str = ""
    seconds: float = 0.0
    log: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        return cls(**json.loads(text))


def order(key: str, piece: Piece, reads: Sequence[str]) -> Order:
    """The order of a piece whose `reads` are done: their locks, as they stand here now, go with it, and its stage's own.

    Its inputs file is of the commit that the machines have, whatever was edited here since the run began.
    """
    one = piece.stage
    text = inputs_file(one.row.track.name, one.row.name, one.name).read_text()
    locks = {stage: entry for stage in (*reads, stage_key(key)) if (entry := entry_of(stage))}
    return Order(
        key, one.row.track.name, one.row.name, one.name, text, tuple(reads), locks, piece.part, piece.parts,
        node.packages(),
    )  # fmt: skip
