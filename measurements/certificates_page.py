"""Writes docs/certificates.md from the measurements in measurements/measured, and makes those.

    python measurements/certificates_page.py                    the page, from what has been measured
    python measurements/certificates_page.py measure <name>...  measures these anew first ('all' for all; hours)

Names: see MEASUREMENTS. `speed` needs the track cifar10_jpeg's data stage, and trains where its row has no weights.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "measurements" / "measured"
PAGE = ROOT / "docs" / "certificates.md"
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Measurement:
    name: str
    title: str
    command: str
    text: str


MEASUREMENTS = (
    Measurement(
        "tightness",
        "How tight the attention bounds are",
        "python measurements/attention_tightness.py",
        "One residual attention layer, mean of 4 inputs; PGD is gradient ascent, a lower bound of the truth. `paper` is Theorem "
        "1 of Havens et al. 2024 with the appendix's score map, `naive` its eq. (12), SpecFormer Theorem 4.3 of Hu et al. 2024 "
        "with W_O and the residual. The last block has the shape of table 3 of Havens et al., where LoFAST stands within 3% of "
        "PGD and SpecFormer hundreds of times above it.",
    ),
    Measurement(
        "soundness",
        "Trying to break them",
        "python measurements/attention_soundness.py 1000000",
        "A trial is one (layer, input, radius) attacked by gradient ascent; 1 to 8 heads, 2 to 65 tokens, weight scales 0.1 to "
        "10, inputs up to scale 1000, radii 1e-3 to 1, a fifth of the layers extreme on purpose. A ratio of 1.000000 is a bound "
        "that ascent reaches. The medians are those of this wild distribution, where large inputs saturate softmax. The slow "
        "tests run 200,000 others.",
    ),
    Measurement(
        "network",
        "Trying to break whole networks",
        "python measurements/network_soundness.py 2000 5000",
        "Random networks (depth 1 to 3, 1 to 8 heads, 2 to 65 tokens, a third of them extreme), certified, then attacked inside "
        "each certified ball over every rival, and with adversarial examples planted at known distances. With the certificate's "
        "falls lowered by 1% the same trials find violations.",
    ),
    Measurement(
        "mutants",
        "Trying to be certified for what one is not",
        "python measurements/certificate_mutants.py 12000",
        "Small networks changed at random in attributes, weights (NaN, infinity, huge, tiny, denormal), number types, hooks, "
        "replaced methods, subclasses, arguments, swapped and inserted layers: each is refused, or every certified image is "
        "attacked inside its radius, and what the changed object answers in float32 counts. The same trials find false "
        "certificates where arguments and ranges are not checked.",
    ),
    Measurement(
        "speed",
        "Speed and yield of the cascade",
        "python measurements/certificate_speed.py",
        "Real CIFAR-10 images re-encoded as JPEG; Havens2024LoFAST's mean_pool of width 128 with 4 tokens and 8 heads, 3, 4 and "
        "5 layers as in tables 1 and 2 of the paper. Yes or no at one radius: the cascade, its last step alone on every image "
        "that is right, and the published formula on the same weights. What descent does not disprove bounds from above what "
        "any certificate could give. The paper: 29.1 / 16.0 / 3.0% at 0.055 s an image for 3 layers, 28.9 / 11.9 / 0.8% at "
        "0.077 for 4, 27.6 / 8.3 / 0.0% at 0.094 for 5; alpha,beta-CROWN for 3 layers 41.2 / 14.1 / fails at 6.7 s and more.",
    ),
    Measurement(
        "margin_gradient",
        "What the margin gradient leaves undecided",
        "python measurements/margin_gradient.py 1000 60",
        "Validation images that are right, not certified and not disproved, of rows with SLL blocks around dot-product attention or "
        "convolutions (digits have 200 validation images), and of how many each improvement would decide the nearest rival, so at "
        "most certify: the first-order term over ball and box by its dual, SLL's t for each neuron and rival by gradient steps, "
        "attention's own term rival by rival (left out, which no bound of it can beat), the ten costliest kinks split (taken to cost "
        "nothing themselves). None decides one of the 118 by itself, all four together 5: these rows were trained for composing, which is "
        "the smaller bound here. So none was built, nor Jacobians of attention beyond 8,192 numbers, which no certified row has. "
        "AMD EPYC (family 25, model 17); the rows' weights are the published ones.",
    ),
    Measurement(
        "frontier",
        "What attention may do against what is certified",
        "python measurements/attention_frontier.py",
        "Small networks, trained alike for a few epochs of the track cifar10_jpeg (real CIFAR-10 images re-encoded as JPEG) and "
        "measured on validation images: clean accuracy and accuracy certified at l2 0.1412 in percent, and the points of clean "
        "accuracy that are lost when every attention averages uniformly, is left out, or mixes by its mean pattern over "
        "training images, which keeps where heads look and drops what they see there. Entropy: 1 is uniform. `grid` is "
        "submissions/Havens2024LoFAST/grid.py, `content from` the weight of queries and keys at first; the loss sees what "
        "that costs of the bound (local_margin), or does not (margin).",
    ),
)


def main() -> None:
    known = [measurement.name for measurement in MEASUREMENTS]
    if sys.argv[1:2] == ["measure"]:
        wanted = known if sys.argv[2:] == ["all"] else sys.argv[2:]
        unknown = sorted(set(wanted) - set(known))
        if unknown or not wanted:
            sys.exit(f"error: no measurement {', '.join(unknown) or 'named'}; known: {', '.join(known)}")
        for measurement in MEASUREMENTS:
            if measurement.name in wanted:
                measure(measurement)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}")


def measure(measurement: Measurement) -> None:
    command = shlex.split(measurement.command)
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    MEASURED.mkdir(exist_ok=True)
    (MEASURED / f"{measurement.name}.md").write_text(done.stdout)


def page() -> str:
    """The whole page; the same for the same measurements."""
    from benchmark.certificates import box_lipschitz, lipschitz, local, published, smoothing
    from benchmark.loading import tracks

    rules = tracks.load("digits").smoothing
    assert rules is not None
    words = f"smoothing (every row's smoothed version; sigma {rules.sigma:g}, alpha {rules.alpha:g})"
    parts = [HEAD]
    for name, sentence in (
        ("local", local.guarantee()),
        ("published", published.guarantee()),
        ("lipschitz", lipschitz.guarantee()),
        ("box_lipschitz", box_lipschitz.guarantee()),
        (words, smoothing.guarantee(rules.sigma, rules.alpha)),
    ):
        parts.append(f"- **{name}**. {sentence}\n")
    for measurement in MEASUREMENTS:
        path = MEASURED / f"{measurement.name}.md"
        shown = path.read_text().strip() if path.exists() else "Not measured yet."
        picture = PAGE.parent / f"{measurement.name}.svg"
        shown += f"\n\n![{measurement.title}]({picture.name})" if picture.exists() else ""
        parts.append(f"\n## {measurement.title}\n\n`{measurement.command}`\n\n{measurement.text}\n\n{shown}\n")
    return "".join(parts)


HEAD = """# Certificates: what is guaranteed, and what was measured

This page is generated: `python measurements/certificates_page.py`. Derivations and proofs stand in the docstrings of
`benchmark/certificates/`; the order to read them in:

| file | what it bounds | source |
|---|---|---|
| `benchmark/layers/description.py`, `bounds/checked_copy.py` | the network that a certificate speaks of, rebuilt from a model's layers and weights | |
| `bounds/spectral.py` | norms of matrices, operators and convolutions, by proof | Higham 2002; Sedghi et al. 2019 |
| `bounds/sensitivity.py` | one dot-product attention layer around an input | Havens et al. 2024, made tighter |
| `bounds/attention.py` | the same, cheaply | derived there |
| `layers/attention_grid.py`, `bounds/attention_grid.py` | attention over a grid, whose heads look at places of their own | derived there |
| `bounds/linear.py`, `activations.py` | shifted tokens and absolute values | derived there |
| `bounds/rounding.py`, `checked_copy.py` | what float32 does to each layer, and whether this process computes in it | Higham 2002 |
| `bounds/orthogonal.py` | by how much machines may differ in an orthonormal weight | Higham 2002; derived there |
| `bounds/layer_bound.py`, `attention.py`, `sll.py`, `projection.py` and the others | one layer each: move, Jacobian, remainder, rounding | derived there |
| `bounds/token_convolution.py` | convolutions over tokens, and residuals around them as a whole | Sedghi et al. 2019; derived there |
| `submissions/Hu2024SpecFormer/head_bounds.py` | one dot-product head at a point and over a ball, in place of SpecFormer's theorem 4.3 | derived there |
| `bounds/scaled_cosine.py` | LipsFormer's attention, around an input and globally | Qi et al. 2023, made tighter; derived there |
| `bounds/network_bound.py` | a whole network, by composing and by the margin's gradient | Havens et al. 2024; derived there |
| `local.py` | certified radii and verdicts, by a cascade | |
| `published.py` | certified radii by the published bound, and with each improvement on it | Havens et al. 2024 |
| `bounds/l2_attention.py`, `lipschitz.py` | global constants and Tsuzuku margins | Kim et al. 2021; Tsuzuku et al. 2018 |
| `bounds/box.py`, `box_lipschitz.py` | networks with (clipped) ReLUs, by a ball and a box around each image | Lee et al. 2020; Huang et al. 2021; made sound |
| `smoothing.py` | a model's smoothed version | Cohen et al. 2019 |
| `crown.py` | linear bound propagation, where auto_LiRPA is installed | Zhang et al. 2018 |
| `unsound_paper_formula.py` | published expressions that are no bounds; no Record takes them | CertViT, SpecFormer, LNFormer |

`benchmark/audit/` tries to break each row's certificate before it counts (`rvb audit <row>` tries harder).

## Guarantees

"""


if __name__ == "__main__":
    main()
