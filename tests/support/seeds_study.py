"""A published study over the seeds of a row of `tiny_record`, with the robust counts asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tiny_record import record

from benchmark.records.study import PublishedStudy
from benchmark.specs import tracks
from benchmark.specs.seeds import seeds_study, study_name


def verdicts(right: int, n: int = 100) -> str:
    """The first `right` of `n` images."""
    return "1" * right + "0" * (n - right)


def published(submission: str, robust: Sequence[int], certified: Sequence[int] = ()) -> PublishedStudy:
    """`robust` images at Linf 0.15 and, where given, `certified` ones at 0.1, of 100, by seed."""
    row = record(submission, robust[0], 0, certified=10 if certified else None)
    settings = row.settings
    if certified:
        settings = settings.model_validate(settings.model_dump() | {"certificate": {"name": "local"}})
    track = tracks.load("digits")
    study = seeds_study(track, row.variant, settings, 0).model_copy(update={"seeds": tuple(range(len(robust)))})
    runs = []
    for seed, right in enumerate(robust):
        counts = {"clean": 97, "APGD Linf 0.15": right, "APGD L2 0.5": 30, "APGD L2 1": 0}
        values: dict = {label: count / 100 for label, count in counts.items()}
        bits: dict = {label: verdicts(count) for label, count in counts.items()}
        if certified:
            reached = (certified[seed], 5, 0)
            values["certified"] = [count / 100 for count in reached]
            bits["certified"] = [verdicts(count) for count in reached]
        runs.append(
            {
                "cell": "all", "seed": seed, "parameters": 7, "values": values, "verdicts": bits, "weights": "w",
                "training": row.training.model_dump(),
            }
        )  # fmt: skip
    (cell,) = study.grid()
    result = {
        "submission": submission, "name": study_name(row.variant), "track": "digits", "track_version": row.track_version,
        "variant": row.variant, "n": 100, "cells": [{**cell.model_dump(), "settings": settings.model_dump(mode="json")}],
        "measures": study.measures, "runs": runs, "x": {"certified": (0.1, 0.25, 0.5)} if certified else {},
        "sha256": {"code": "c"}, "environment": {},
    }  # fmt: skip
    return PublishedStudy.model_validate({"study": study, "result": result})
