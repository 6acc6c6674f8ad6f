"""What improvements of the margin gradient could certify, on images that the certificate `local` leaves undecided.

    python measurements/margin_gradient.py [images] [steps] > measurements/measured/margin_gradient.md

Validation images of rows that are built (`rvb repro` builds those of digits), at radii of their tracks. An image is undecided
where it is right, not certified, and not disproved by descent of the margin. The bound that network_bound.py has of its
nearest rival is taken apart, in shares of the margin; below 1 that rival is decided. Each improvement is tried alone:

  box        the first-order term over ball and box, by its dual (`box.largest_product`): still a bound
  slopes     SLL's t for each rival and each neuron that may move by 2 |z|, by so many steps of Adam on the bound at the
             image: still a bound
  attention  attention's own term left out: no bound, but the most that bounding it rival by rival could give at the nominal
             Jacobian; what it adds to the other terms' perturbations stays
  10 kinks   the ten SLL neurons that cost most cost nothing: no bound; what splitting them could give of their own cost

`all` is the four together, slopes chosen for that.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.certificates.bounds.attention import AttentionBound
from benchmark.certificates.bounds.box import Region, largest_product
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.layer_bound import PerturbationSet, vjp
from benchmark.certificates.bounds.network_bound import NetworkBound, bound_network
from benchmark.certificates.bounds.sll import SLLBound
from benchmark.certificates.local import certified_at, correct, disproved
from benchmark.data.images import load_split
from benchmark.data.tensors import tensors
from benchmark.sandbox.load_model import load_model
from benchmark.specs.rows import load_row

ROWS = (
    ("digits", "Havens2024LoFAST-mean_pool", (0.1, 0.25)),
    ("digits", "Havens2024LoFAST-large_radius", (0.1, 0.25)),
    ("digits", "Wang2022Cauchy-covit_certified", (0.1, 0.25)),
    ("cifar10_jpeg", "Havens2024LoFAST-wide_margin", (0.1412,)),
)
KINKS = 10
RATE = 0.1  # of Adam, for the logarithm of log(t / |z|)
IMPROVEMENTS = ("as it is", "box", "slopes", "attention", f"{KINKS} kinks", "all")


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(ROOT)
    count, steps = [int(word) for word in sys.argv[1:]] + [200, 60][len(sys.argv) - 1 :]
    print(f"{platform.machine()}, torch {torch.__version__}; the first {count} validation images, {steps} steps\n")
    print("Undecided images whose nearest rival each would decide, alone:\n")
    print("| row | radius | right | certified | undecided | " + " | ".join(IMPROVEMENTS[1:]) + " |")
    print("|" + "---|" * (5 + len(IMPROVEMENTS[1:])))
    shares = []
    for track, name, radii in ROWS:
        data, model = load_row(track, name).data, load_model(name, track)
        images, labels = (t[:count] for t in tensors(load_split(data, "validation")))
        for radius in radii:
            found = undecided(model, images, labels, radius, steps)
            won = [sum(one.won[way] for one in found.parts) for way in IMPROVEMENTS[1:]]
            cells = (name, radius, found.right, found.certified, len(found.parts), *won)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            if found.parts:
                shares.append((name, radius, found.parts))
    print(
        "\nMedians over the undecided images, in shares of the margin (SLL, attention, others: remainders; sums: at the "
        "image):\n"
    )
    names = ("composing", "first order", "SLL", "attention", "others", "rounding")
    print("| row | radius | " + " | ".join([*names, *(f"sum, {way}" for way in IMPROVEMENTS)]) + " |")
    print("|" + "---|" * (2 + len(names) + len(IMPROVEMENTS)))
    for name, radius, parts in shares:
        medians = [statistics.median(one.shares[n] for one in parts) for n in names]
        medians += [statistics.median(one.sums[way] for one in parts) for way in IMPROVEMENTS]
        print(f"| {name} | {radius} | " + " | ".join(f"{median:.3f}" for median in medians) + " |")


@dataclass
class Parts:
    """Of one image's nearest rival: what the bound at the image consists of, what it is by each improvement, and whether
    one that ends at some layer certifies.
    """

    shares: dict[str, float]
    sums: dict[str, float] = field(default_factory=dict)
    won: dict[str, bool] = field(default_factory=dict)


@dataclass
class Found:
    right: int
    certified: int
    parts: list[Parts]


def undecided(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, radius: float, steps: int) -> Found:
    network = checked_copy(model)
    rows, verdict = correct(network, images, labels), certified_at(model, images, labels, radius)
    left = rows[~verdict[rows]]
    left = left[~disproved(network, images[left], labels[left], radius)]
    parts = [taken_apart(network, images[k : k + 1], labels[k : k + 1], radius, steps) for k in left.tolist()]
    return Found(len(rows), int(verdict.sum()), parts)


def taken_apart(network: torch.nn.Sequential, x: torch.Tensor, y: torch.Tensor, radius: float, steps: int) -> Parts:
    bound = OneRival(bound_network(network, x, y), radius)
    kinks = bound.costliest(KINKS)
    best = bound.optimise(steps)
    ways: dict[str, dict[str, Any]] = {
        "as it is": {},
        "box": {"box": True},
        "slopes": {"chosen": best},
        "attention": {"attention": False},
        f"{KINKS} kinks": {"free": kinks},
        "all": {
            "box": True,
            "chosen": bound.optimise(steps, attention=False, free=kinks),
            "attention": False,
            "free": kinks,
        },
    }
    parts = Parts({name: value / bound.margin for name, value in bound.shares().items()})
    for name, way in ways.items():
        sums = bound.drops(**way)
        parts.sums[name], parts.won[name] = sums[-1] / bound.margin, min(sums) < bound.margin
    return parts


class OneRival:
    """The margin gradient of one image and its nearest rival, SLL's t as parameters."""

    def __init__(self, bounded: NetworkBound, radius: float) -> None:
        self.bounded, self.radius = bounded, torch.tensor([radius], dtype=torch.float64)
        bounded.relaxation_radius = self.radius
        with torch.no_grad():
            self.perturbations, self.roundings, last = bounded._perturbations(self.radius)
            composed = bounded.composed(self.radius)
            self.rival = rival = (bounded.rival_margins - composed).argmin(1, keepdim=True)
            self.margin = float(bounded.rival_margins.gather(1, rival))
            self.composed = float(composed.gather(1, rival))
            self.start = bounded.difference[:, rival[0]], bounded.head_rounding(last)[:, rival[0]]
        self.indices = range(len(bounded.layer_bounds) - 1, bounded.prefix.layers - 1, -1)
        self.blocks = [i for i in self.indices if isinstance(bounded.layer_bounds[i], SLLBound)]
        with torch.no_grad():
            self.jacobians = {i: self._jacobian(i) for i in self.indices if i not in self.blocks}

    def _jacobian(self, index: int) -> torch.Tensor:
        output = self.bounded.activations[index + 1]
        eye = torch.eye(output.numel(), dtype=torch.float64).reshape(1, -1, *output.shape[1:])
        return self._vjp(index, eye).flatten(2)[0]

    def _vjp(self, index: int, a: torch.Tensor) -> torch.Tensor:
        return vjp(self.bounded.layers[index], self.bounded.activations[index], a)

    def largest(self, index: int) -> tuple[SLLBound, PerturbationSet, torch.Tensor, torch.Tensor]:
        block, perturbation = self.bounded.layer_bounds[index], self.perturbations[index]
        assert isinstance(block, SLLBound)
        assert perturbation is not None
        return block, perturbation, block._largest(perturbation), block.z.abs().clamp(min=1e-9)

    def chosen(self) -> dict[int, torch.Tensor]:
        """t of `relax_for_rival`, as log(log(t / |z|))."""
        found = {}
        for index in self.blocks:
            _, _, most, bend = self.largest(index)
            found[index] = (torch.maximum(most, bend) / bend).log().clamp(min=1e-3).log()
        return found

    @torch.no_grad()
    def shares(self) -> dict[str, float]:
        """What is taken from the margin, by part: of composing, and of the gradient at the image."""
        return {name: float(value) for name, value in self.bounds(None)[1].items()} | {"composing": self.composed}

    @torch.no_grad()
    def drops(
        self,
        *,
        box: bool = False,
        chosen: dict[int, torch.Tensor] | None = None,
        attention: bool = True,
        free: dict[int, torch.Tensor] | None = None,
    ) -> list[float]:
        """Bounds of how far the margin falls, by the gradient at each layer's input, the image's last."""
        totals, parts, a = self.bounds(chosen, attention=attention, free=free)
        if box:
            rho = self.perturbations[self.bounded.prefix.layers].rho  # type: ignore[union-attr]
            rounded = torch.linalg.vector_norm(a.flatten(2), dim=2) * rho[:, None]
            for index in reversed(range(self.bounded.prefix.layers)):
                a = self._vjp(index, a)
            x = self.bounded.activations[0].flatten(1)
            first = largest_product(-a.flatten(2), Region(self.radius, -x, 1 - x)) + rounded
            totals[-1] = torch.minimum(totals[-1], totals[-1] - parts["first order"] + first)
        return [float(total) for total in totals]

    def bounds(
        self,
        chosen: dict[int, torch.Tensor] | None,
        *,
        attention: bool = True,
        free: dict[int, torch.Tensor] | None = None,
        exact: bool = True,
    ) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
        chosen = chosen or self.chosen()
        a, later = self.start
        totals, parts = [], {"SLL": 0 * later, "attention": 0 * later, "others": 0 * later, "rounding": later}
        for index in self.indices:
            layer_bound, perturbation = self.bounded.layer_bounds[index], self.perturbations[index]
            assert perturbation is not None
            rounding = torch.linalg.vector_norm(a.flatten(2), dim=2) * self.roundings[index][:, None]
            if index in self.blocks:
                kind, (part, a) = "SLL", self._block(index, a, chosen[index], free, exact)
            else:
                kind = "attention" if isinstance(layer_bound, AttentionBound) else "others"
                part = layer_bound.remainder_along(a, perturbation)
                part = part if attention or kind != "attention" else 0 * part
                a = (a.flatten(2) @ self.jacobians[index]).reshape(1, 1, *self.bounded.activations[index].shape[1:])
            parts[kind], parts["rounding"] = parts[kind] + part, parts["rounding"] + rounding
            later = later + part + rounding
            first = self.bounded._first_order(a, perturbation)
            totals.append(first + later)
        return totals, parts | {"first order": first}, a

    def _block(
        self,
        index: int,
        a: torch.Tensor,
        chosen: torch.Tensor,
        free: dict[int, torch.Tensor] | None,
        exact: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`SLLBound.relax_for_rival` with t given; not `exact`: without rounding, to be optimised."""
        block, perturbation, most, bend = self.largest(index)
        t, near = bend * chosen.exp().exp(), most < 2 * bend
        slopes = torch.where(near, block.slopes, 0.5 + block.z / (2 * t))
        square = torch.where(near, (most - bend).clamp(min=0) / most.clamp(min=1e-150) ** 2, 1 / (4 * t))
        offset = torch.where(near, 0.0, (t - bend) ** 2 / (4 * t))
        alpha = 2 * (a @ block.weight) / block.scale
        back = a - (alpha * torch.where(alpha > 0, slopes[:, None], block.slopes[:, None])) @ block.weight.mT
        alpha = alpha.clamp(min=0).flatten(2)
        if free is not None:
            alpha = alpha * ~free[index]
        weight, offsets = alpha * square.flatten(1)[:, None], (alpha * offset.flatten(1)[:, None]).sum(2)
        apart = (weight * most.flatten(1)[:, None] ** 2).sum(2)
        if not exact:  # psd_norm_upper, behind `_squares`, has no gradient
            rows = block._rows(perturbation.columns)[0].flatten(1, 2)[0]
            through = (
                self.radius
                * torch.linalg.eigvalsh(rows.mT @ (weight[0, 0][:, None] * rows))[-1].clamp(min=1e-300).sqrt()
            )
            each = weight.unflatten(2, block.z.shape[1:])
            own = torch.minimum((each * block.lengths**2).sum(-1), (each * block.scale).amax(-1) * block.lam).amax(-1)
            return torch.minimum(
                (through + perturbation.rho * own.clamp(min=1e-300).sqrt()) ** 2, apart
            ) + offsets, back
        return torch.minimum(block._squares(weight, perturbation), apart) + offsets, back

    @torch.no_grad()
    def costliest(self, count: int) -> dict[int, torch.Tensor]:
        """The neurons that cost most by themselves, of all blocks: a mask of each."""
        chosen, costs, a = self.chosen(), {}, self.start[0]
        for index in self.indices:
            if index not in self.blocks:
                a = (a.flatten(2) @ self.jacobians[index]).reshape(1, 1, *self.bounded.activations[index].shape[1:])
                continue
            block, _, most, _ = self.largest(index)
            alpha = (2 * (a @ block.weight) / block.scale).clamp(min=0)
            costs[index] = (alpha * block._missed(most)[:, None]).flatten(2)
            a = self._block(index, a, chosen[index], None, True)[1]
        least = torch.cat([cost.flatten() for cost in costs.values()]).topk(count).values[-1]
        return {index: cost >= least for index, cost in costs.items()}

    def optimise(
        self, steps: int, *, attention: bool = True, free: dict[int, torch.Tensor] | None = None
    ) -> dict[int, torch.Tensor]:
        """The t of the least bound at the image that was met, by Adam."""
        with torch.enable_grad():
            chosen = {index: value.clone().requires_grad_() for index, value in self.chosen().items()}
            adam = torch.optim.Adam(chosen.values(), lr=RATE)
            best, least = {k: v.detach().clone() for k, v in chosen.items()}, float("inf")
            for _ in range(steps):
                total = self.bounds(chosen, attention=attention, free=free, exact=False)[0][-1].squeeze()
                if float(total.detach()) < least:
                    best, least = {k: v.detach().clone() for k, v in chosen.items()}, float(total.detach())
                adam.zero_grad()
                total.backward()
                adam.step()
        return best


if __name__ == "__main__":
    main()
