"""The report of `benchmark.evaluate`: numbers with intervals, a table of the images, and a page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark.evaluation.evidence import proportion
from benchmark.records.accuracy import Proportion
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import Engine, ThreatModel

TEMPLATES = Path(__file__).parent


def check_place(path: Path) -> None:
    """Make the folder of a report. Raise a BenchmarkError for a path that cannot be written, or with another ending."""
    folder = " is a folder" * path.is_dir()
    if folder or path.suffix not in (".html", ".json", ".csv", ".safetensors"):
        raise BenchmarkError(f"{path}{folder}: a report is saved as .html, .json, .csv or .safetensors")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise BenchmarkError(f"cannot write into the folder {path.parent} ({error.strerror}); choose another place") from None


@dataclass(frozen=True)
class AttackReport:
    """AutoAttack at one radius, on the first m of the images."""

    threat: ThreatModel
    engine: Engine
    robust: torch.Tensor  # (m,) bool: right on the clean image, and broken by no part of AutoAttack
    decided: torch.Tensor  # (m,) bool: False where the time was up before
    adversarial: torch.Tensor  # (m, c, h, w) float32: the adversarial image where one was found, else the clean one
    moved: torch.Tensor  # (m,) its l2 distance from the clean image, in pixels
    remaining: dict[str, int]  # robust images after each part, in order; empty where the time was up
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Certified:
    radii: torch.Tensor  # (n,) float64 l2 radii in pixels, 0 where the prediction is wrong or nothing is proven
    done: int  # images that were certified before the time was up
    guarantee: str  # what a radius says, in a sentence


@dataclass(frozen=True)
class Smoothed:
    """The smoothed version of the model: another classifier, certified by sampling."""

    sigma: float  # the noise's deviation in pixels
    prediction: torch.Tensor  # (n,) its class, -1 where it abstains
    radius: torch.Tensor  # (n,) l2 radii in pixels, 0 where it abstains
    done: int  # images that were smoothed before the time was up
    guarantee: str


@dataclass(frozen=True)
class Report:
    """The result of `evaluate`: one model on one set of n images. Radii are in pixels of [0, 1]."""

    model: str
    data: str
    labels: torch.Tensor  # (n,) int64
    prediction: torch.Tensor  # (n,) the model's
    clean: torch.Tensor  # (n,) bool, whether it is right
    attacks: tuple[AttackReport, ...]
    radii: tuple[float, ...]  # l2, at which certified accuracy is counted
    certified: Certified | None  # None where no certificate was asked for
    smoothed: Smoothed | None
    warnings: tuple[str, ...]  # that the numbers may be unreliable
    parameters: int
    seconds: float  # that the call took
    environment: dict[str, str]

    def _counted(self) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Yield each accuracy: name, images that count (m,), and number of undecided images."""
        yield "clean", self.clean, 0
        for attack in self.attacks:
            yield f"AutoAttack {attack.threat.label}", attack.robust, int((~attack.decided).sum())
        if self.certified:
            for radius in self.radii:
                reached = self.clean & (self.certified.radii >= radius)
                yield f"certified L2 {radius:g}", reached, len(self.labels) - self.certified.done
        if self.smoothed:
            right, left = self.smoothed.prediction == self.labels, len(self.labels) - self.smoothed.done
            yield "smoothed clean", right, left
            for radius in self.radii:
                yield f"smoothed L2 {radius:g}", right & (self.smoothed.radius >= radius), left

    @property
    def numbers(self) -> dict[str, Proportion]:
        """Accuracies by name, such as "AutoAttack Linf 0.0313725", with 95% intervals. Undecided images do not count."""
        return {name: proportion(hits.numpy()) for name, hits, _ in self._counted()}

    @property
    def undecided(self) -> dict[str, int]:
        """Images that were undecided when the time was up, by the accuracy's name."""
        return {name: count for name, _, count in self._counted() if count}

    @property
    def images(self) -> dict[str, np.ndarray]:
        """Columns (n,) by name: `pandas.DataFrame(report.images)` is a table of the images. A column of an attack holds None
        for images that were not attacked, or are undecided.
        """
        columns: dict[str, np.ndarray] = {
            "label": self.labels.numpy(), "prediction": self.prediction.numpy(), "clean": self.clean.numpy(),
        }  # fmt: skip
        for attack in self.attacks:
            column = np.full(len(self.labels), None, dtype=object)
            decided = attack.decided.numpy()
            column[: len(decided)][decided] = attack.robust.numpy()[decided]
            columns[f"AutoAttack {attack.threat.label}"] = column
        if self.certified:
            columns["certified_l2"] = self.certified.radii.numpy()
        if self.smoothed:
            columns["smoothed_prediction"] = self.smoothed.prediction.numpy()
            columns["smoothed_l2"] = self.smoothed.radius.numpy()
        return columns

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Return name, percent, interval and images of each number, in words."""
        lines = []
        for name, p in self.numbers.items():
            count = f"{p.count} of {p.n}"
            if open_ := self.undecided.get(name, 0):
                count = f"{p.count} to {p.count + open_} of {p.n}: {open_} undecided"
            lines.append((name, f"{100 * p.value:.1f}", f"{100 * p.low:.1f}–{100 * p.high:.1f}", count))
        return lines

    def __str__(self) -> str:
        width = max(len(name) for name in self.numbers)
        rows = [f"{name:<{width}}  {value:>5}%  ({interval})  {count}" for name, value, interval, count in self.lines()]
        warnings = [f"warning: {words}" for words in self.warnings]
        return "\n".join([f"{self.model} on {self.data}, {self.seconds:g} s", *rows, *warnings])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the adversarial images, as JSON values."""
        return {
            "model": self.model,
            "data": self.data,
            "parameters": self.parameters,
            "numbers": {name: p.model_dump(mode="json") for name, p in self.numbers.items()},
            "undecided": self.undecided,
            "attacks": [
                {"threat": a.threat.model_dump(mode="json"), "engine": a.engine, "remaining": a.remaining}
                for a in self.attacks
            ],
            "guarantees": [part.guarantee for part in (self.certified, self.smoothed) if part],
            "warnings": list(self.warnings),
            "images": {name: column.tolist() for name, column in self.images.items()},
            "seconds": self.seconds,
            "environment": self.environment,
        }

    def save(self, path: str | Path) -> Path:
        """Write a page (.html), all numbers (.json), a table of the images (.csv), or the adversarial images (.safetensors).

        Raises:
            BenchmarkError: another ending, or a place that cannot be written.
        """
        check_place(path := Path(path))
        if path.suffix == ".html":
            files.write(path, self.to_html())
        elif path.suffix == ".json":
            files.write(path, json.dumps(self.to_dict(), indent=1) + "\n")
        elif path.suffix == ".csv":
            import pandas as pd

            files.write(path, pd.DataFrame(self.images).to_csv(index_label="image"))
        else:
            from safetensors.torch import save

            files.write(path, save({a.threat.label: a.adversarial.contiguous() for a in self.attacks}))
        return path

    def to_html(self) -> str:
        """Return a self-contained page: numbers, the curve over the radius, warnings, and the images."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        pages = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
        return pages.get_template("report.html").render(report=self, chart=self._curve())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th scope=row>{name}</th><td>{value}%</td><td>{interval}</td><td>{count}</td></tr>"
            for name, value, interval, count in self.lines()
        )
        return f"<table>{cells}</table>" + "".join(f"<p>warning: {escape(words)}</p>" for words in self.warnings)

    def _curve(self) -> str:
        """Return accuracy over the l2 radius as SVG: points of attacks, curves of certificate and smoothing."""
        import altair as alt
        import pandas as pd
        import vl_convert as vlc

        points: list[dict[str, Any]] = []
        curves = {"certified": (self.clean, self.certified.radii)} if self.certified else {}
        if self.smoothed:
            curves["smoothed"] = (self.smoothed.prediction == self.labels, self.smoothed.radius)
        for name, (right, radii) in curves.items():
            reached = torch.where(right, radii, -1.0).numpy()
            for radius in np.unique([0.0, *reached[reached > 0]]):
                share = 100 * float((reached >= radius).mean())
                points.append({"radius": float(radius), "percent": share, "what": name})
        points += [
            {"radius": a.threat.eps, "percent": 100 * float(a.robust.double().mean()), "what": "AutoAttack"}
            for a in self.attacks
            if a.threat.norm == "L2"
        ]
        if not points:
            return ""
        points.append({"radius": 0.0, "percent": 100 * float(self.clean.double().mean()), "what": "AutoAttack"})
        chart = alt.Chart(pd.DataFrame(points)).encode(
            x=alt.X("radius:Q", title="l2 radius, pixels of [0, 1]"),
            y=alt.Y("percent:Q", title="images, percent", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("what:N", title=None),
        )
        curve = chart.transform_filter("datum.what != 'AutoAttack'").mark_line(interpolate="step-before")
        attacked = chart.transform_filter("datum.what == 'AutoAttack'").mark_point(filled=True, size=60)
        return vlc.vegalite_to_svg(alt.layer(curve, attacked).properties(width=480, height=240).to_json())
