"""The module `autoattack` with its authors' interface, over the PyPI package pyautoattack.

robustbench imports `autoattack`, which is not on PyPI. pyautoattack 0.2.0 holds the authors' attack files line for line
but changed the `AutoAttack` class: keyword-only, `attacks` for `attacks_to_run`, `batch_size` for `bs`, no `verbose` nor
`log_path`, and always a pair back. This class has the authors' signature and results (github.com/fra31/auto-attack).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyautoattack
import torch

__all__ = ["AutoAttack"]


class AutoAttack:
    """AutoAttack as its authors call it.

    Attributes of the wrapped object (`apgd`, `fab`, `square`, `apgd_targeted`, `attacks_to_run`, `seed`, ...) are read
    and set through this one, so that code which tunes them keeps working.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        norm: str = "Linf",
        eps: float = 0.3,
        seed: int | None = None,
        verbose: bool = True,
        attacks_to_run: list[str] | None = None,
        version: str = "standard",
        is_tf_model: bool = False,
        device: torch.device | str = "cuda",
        log_path: str | Path | None = None,
    ) -> None:
        if is_tf_model:
            raise NotImplementedError("pyautoattack attacks PyTorch models only")
        inner = pyautoattack.AutoAttack(
            model, norm=norm, eps=eps, seed=seed, attacks=attacks_to_run or None, version=version, device=device
        )
        if version == "custom" and inner.attacks_to_run is None:
            inner.attacks_to_run = []
        inner.verbose = verbose
        _log_to(inner.logger, verbose, log_path)
        object.__setattr__(self, "_inner", inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_inner"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def run_standard_evaluation(
        self,
        x_orig: torch.Tensor,
        y_orig: torch.Tensor,
        bs: int = 250,
        return_labels: bool = False,
        state_path: Path | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Adversarial images, and with `return_labels` the labels that the model gives them."""
        images, labels = self._inner.run_standard_evaluation(x_orig, y_orig, batch_size=bs, state_path=state_path)
        return (images, labels) if return_labels else images

    def run_standard_evaluation_individual(
        self, x_orig: torch.Tensor, y_orig: torch.Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Each attack alone on all images: name to adversarial images, or to the pair with `return_labels`."""
        attacks = list(self._inner.attacks_to_run)
        found = {}
        try:
            for attack in attacks:
                self._inner.attacks_to_run = [attack]
                found[attack] = self.run_standard_evaluation(x_orig, y_orig, bs, return_labels)
        finally:
            self._inner.attacks_to_run = attacks
        return found

    def clean_accuracy(self, x_orig: torch.Tensor, y_orig: torch.Tensor, bs: int = 250) -> float:
        return self._inner.clean_accuracy(x_orig, y_orig, bs=bs)

    def set_version(self, version: str = "standard") -> None:
        self._inner._set_version(version)


def _log_to(logger: logging.Logger, verbose: bool, path: str | Path | None) -> None:
    """The authors print progress when `verbose`, and write it to `log_path`; pyautoattack logs it at level DEBUG."""
    for handler in [h for h in logger.handlers if getattr(h, "_of_autoattack", False)]:
        logger.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler()] if verbose else []
    if path is not None:
        handlers.append(logging.FileHandler(path))
    for handler in handlers:
        handler._of_autoattack = True  # type: ignore[attr-defined]
        logger.addHandler(handler)
    if handlers:
        logger.setLevel(logging.DEBUG)
