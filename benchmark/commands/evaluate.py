"""`rvb evaluate`: `benchmark.evaluate` for a model in a file. It needs no checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmark.commands.terminal import EngineOption, TrackOption, console
from benchmark.runtime.errors import BenchmarkError


def evaluate(
    model: Annotated[str, typer.Argument(help="path/to/model.py:build, a function that returns a torch.nn.Module.")],
    weights: Annotated[Path | None, typer.Option(help="A safetensors file, or a checkpoint of torch.")] = None,
    track: TrackOption = "digits",
    attack: Annotated[
        list[str] | None, typer.Option(help="Such as 'Linf 8/255', several times; the track's unless given; 'none' for none.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Only the first images of the track.")] = None,
    certificate: Annotated[bool, typer.Option("--certificate", help="Prove radii, of networks of known layers.")] = False,
    sigma: Annotated[float | None, typer.Option(help="Certify the smoothed version too, by noise of this deviation.")] = None,
    minutes: Annotated[float | None, typer.Option(help="A limit; images undecided by then count as not robust.")] = None,
    folder: Annotated[Path | None, typer.Option(help="What a run that was stopped goes on from.")] = None,
    device: Annotated[str, typer.Option(help="Such as cpu or cuda.")] = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="Images in one call of the model.")] = 128,
    engine: EngineOption = None,
    save: Annotated[list[Path] | None, typer.Option(help="A .html, .json, .csv or .safetensors file.")] = None,
) -> None:
    """Evaluate your own model: clean accuracy, AutoAttack, and on request certified and smoothed accuracy."""
    from benchmark.evaluation import own_file
    from benchmark.evaluation.evaluate import evaluate as evaluated
    from benchmark.evaluation.report import check_place

    if "none" in (attack or ()) and len(attack or ()) > 1:
        raise BenchmarkError("--attack none stands beside other attacks; give it alone, or leave it out")
    threats = None if attack is None else [_threat(words) for words in attack if words != "none"]
    for path in save or ():
        check_place(path)
    network = own_file.build(model)
    if weights:
        own_file.load_weights(network, weights)
    try:
        network = network.to(device)
    except (RuntimeError, AssertionError) as error:
        raise BenchmarkError(f"the model does not go to {device}: {str(error).splitlines()[0]}") from None
    report = evaluated(
        network, track, count=count, attacks=threats, certificate=certificate, sigma=sigma, minutes=minutes, folder=folder,
        engine=engine or "fast", batch_size=batch_size, device=device,
    )  # fmt: skip
    console.print(str(report), markup=False)
    for path in save or ():
        console.print(f"wrote {report.save(path)}", markup=False)


def _threat(words: str) -> tuple[str, str | float]:
    norm, _, eps = words.strip().partition(" ")
    try:
        return norm, eps.strip() if "/" in eps else float(eps)
    except ValueError:
        raise BenchmarkError(f"{words!r} is no attack; give a norm and a radius, such as 'Linf 8/255' or 'L2 0.5'") from None
