"""Plant mistakes in a checkout, one at a time, and check that the tests catch each.

    git clone . ../to_break
    python measurements/planted_mistakes.py ../to_break [--only WORD] [--timeout SECONDS]
    python measurements/planted_mistakes.py ../to_break --find
    python measurements/planted_mistakes.py --list

Use a checkout that nobody works in: the script edits its files and restores them, also when it is interrupted.
A mistake replaces a short piece of code that occurs exactly once under benchmark/ and leaderboard/, in any file of its room;
line breaks and spaces do not count. Results: caught (a test failed), MISSED (all passed), not found (the snippet occurs 0 or
several times, or in another room), timeout, error (pytest could not run the tests, as when a test file has moved).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("benchmark", "leaderboard")
MARKERS = "not long and not gpu and not browser"
# [room] tests that should catch the mistakes, then a line for each: what it is: right text => wrong text
# The room is the folder of benchmark/ that holds the code, or leaderboard.
LIST = r"""
[attacks] tests/attacks/test_ball.py
an image of a small ball goes back to its clean one: 1e-4, 1e-3, 1e-2, 0.1, 1.0) => 1.0)
image not put back into the box: .clamp(0, 1).to(images.device) => .to(images.device)
an image far outside the ball is taken: over.max() > 1e-5 + 1e-4 * threat.eps => over.max() > threat.eps
[attacks] tests/attacks/test_ball.py -k margin
margin over the smallest other logit: others.amax(1, keepdim=True) => logits.amin(1, keepdim=True)
[attacks] tests/attacks/test_replaced_attention.py
attention, an image's own patterns for another's: pattern.roll(1, 0) => pattern.roll(0, 0)
attention, mean patterns not divided: sum(layer) / len(images) => sum(layer)
[attacks] tests/attacks/engine/test_search.py
slots, a later run hides an earlier one: if target < self.by[image] => if target >= 0
AutoAttack, least likely targets: order[:, -targets - 1 : -1].flip(1) => order[:, :targets]
FAB, points outside the ball count: (margins(logits, state["label"]) <= 0) & near => (margins(logits, state["label"]) <= 0)
APGD, a tie is right: (state, margins(logits, state["label"]) <= 0) => (state, margins(logits, state["label"]) < 0)
FAB, a tie is right: (margins(logits, state["label"]) <= 0) & near => (margins(logits, state["label"]) < 0) & near
search, NaN goes on: _finite(checked(self.model(leaf.clone()), len(leaf)) => (checked(self.model(leaf.clone()), len(leaf))
[attacks] tests/attacks/engine/test_apgd.py
APGD, step not halved: state["step"] / 2 => state["step"]
APGD, share of rises off by one: state["rises"] <= RHO * window => state["rises"] <= RHO * window - 1
APGD, no momentum: torch.where(state["done"] > 0, MOMENTUM, 1.0) => torch.where(state["done"] > 0, 1.0, 1.0)
APGD, loss over other logits: ordered[:, -3] + ordered[:, -4] => ordered[:, -2] + ordered[:, -3]
[attacks] tests/attacks/engine/test_square.py
Square, schedule of the sides stands still: self.authors.p_selection(query) => self.authors.p_selection(0)
[attacks] tests/attacks/test_attacks.py -k foolbox
PGD, ball twice as wide: moves.clamp(-threat.eps, threat.eps) => moves.clamp(-2 * threat.eps, 2 * threat.eps)
[attacks] tests/attacks/test_attacks.py
PGD, climbs down the margin: -margins(logits, labels).sum() => margins(logits, labels).sum()
[certificates] tests/certificates/bounds/test_sensitivity.py
sensitivity, softmax's curvature halved: math.sqrt(6) / 18 => math.sqrt(6) / 36
[certificates] tests/certificates/bounds/test_spectral.py
spectral, smallest eigenvalue for the largest: eigvalsh(gram.cpu())[..., -1] => eigvalsh(gram.cpu())[..., 0]
spectral, a trial that was not proven: trial + 2 * (n + 1) * UNIT => trial * (1 - 1e-3) + 2 * (n + 1) * UNIT
spectral, mean over frequencies: svdvals(blocks.cpu())[..., 0].max() => svdvals(blocks.cpu())[..., 0].mean()
[certificates] tests/certificates/bounds/test_steps.py -k sll
sll, remainder of all neurons together halved: 2 * (self.lam * self._squares( => (self.lam * self._squares(
[certificates] tests/certificates/bounds/test_steps.py -k layernorm
layernorm, curvature halved: UP / (math.sqrt(3 * self.d) => UP / (2 * math.sqrt(3 * self.d)
layernorm, ball not taken off the deviation: (1 - 1e-12) - delta[:, None]).clamp => (1 - 1e-12)).clamp
[certificates] tests/certificates/bounds/test_steps.py -k gelu
activations, curvature halved: / 2, most.clamp(min=0) / 2 => / 4, most.clamp(min=0) / 4
[certificates] tests/certificates/bounds/test_steps.py -k extremes
GELU, an extreme of the curvature left out: flat_curvature=(-2.0, 0.0, 2.0) => flat_curvature=(-2.0, 2.0)
[certificates] tests/certificates/bounds/test_steps.py -k leaky
kink twice as far: perturbation.largest_entries() - self.x.abs() => perturbation.largest_entries() - 2 * self.x.abs()
[certificates] tests/certificates/bounds/test_steps.py -k projection
projection, curvature halved: self.ball / math.sqrt(3) / room**2 => self.ball / math.sqrt(12) / room**2
[certificates] tests/certificates/bounds/test_kinks.py
sll, kink twice as far: (most - self.z.abs()).clamp(min=0) => (most - 2 * self.z.abs()).clamp(min=0)
[certificates] tests/certificates/bounds/test_steps.py -k round
linear layers, no rounding: count * (length + delta * absolute) => 0 * (length + delta * absolute)
[certificates] tests/certificates/bounds/test_steps.py -k l2
l2 attention, move of the scores halved: 2 * (dy @ y.mT + y @ dy.mT => (dy @ y.mT + y @ dy.mT
[certificates] tests/certificates/bounds/test_l2_attention.py
l2 windows, column sums alone: column.sqrt() + 2 * rows.amax(-1) + 2 * weighted.sqrt() => column.sqrt()
[certificates] tests/certificates/bounds/test_scaled_cosine.py
scaled cosine, remainder halved: least * delta**2 / 2 => least * delta**2 / 4
scaled cosine, sign of the temperature: math.exp(-2 * abs(tau)) => math.exp(2 * abs(tau))
scaled cosine, queries and keys together halved: 2 * tau * (both => tau * (both
[certificates] tests/certificates/bounds/test_token_convolution.py
token convolution, circle too short: n=tokens + kernel.shape[2] - 1 => n=tokens
token convolution, identity at the first tap: middle[:, :, taps // 2] => middle[:, :, 0]
[certificates] tests/certificates/bounds/test_box.py
box, interval's spread halved: self._apply(half, self._absolute) * OUT => self._apply(half, self._absolute) * OUT / 2
box, ball's part halved: rho[..., 0] * torch.linalg.vector_norm(a => rho[..., 0] / 2 * torch.linalg.vector_norm(a
box, ends swapped: torch.where(v > 0, region.high => torch.where(v < 0, region.high
[certificates] tests/certificates/test_networks.py -k margin
network, remainders left out of the fall: later + taken + sizes * roundings => later + sizes * roundings
network, rest of a perturbation subtracted: + sizes * perturbation.rho[:, None] => - sizes * perturbation.rho[:, None]
network, difference of a rival turned round: difference=weight[labels] => difference=-weight[labels]
[certificates] tests/certificates/bounds/test_competitive_attention.py
competition, rounding of scores and level left out: covered(inside + UNIT32 * (output => covered(UNIT32 * (output
competition, no error of the level: off = (math.sqrt(places) * gamma(places + 8) + UNIT32) => off = UNIT32
cone, own entry's error left out: off = math.sqrt(1 + places) * off + => off = off +
competition, size of the moved output left out: UNIT32 * (output + delta + inside) => UNIT32 * (output + inside)
competition, budget left out of the rounding: math.sqrt(x.shape[1]) * budgets => 0.0 * budgets
[certificates] tests/certificates/bounds/test_lemmas.py
sensitivity, softmax's half halved: torch.minimum(tau / 2 * head.v => torch.minimum(tau / 4 * head.v
sensitivity, softmax's half halved beside moving values: head.a * torch.minimum(tau / 2 => head.a * torch.minimum(tau / 4
sensitivity, keys of many tokens halved: return size + own, => return size + own / 2,
sensitivity, keys of many tokens halved in their Jacobians: ((each + other) ** 2 => ((each + other / 2) ** 2
sll, 2 W / T halved: self.back = spectral_norm_upper(2 * layer.weight => self.back = spectral_norm_upper(layer.weight
sll, 2 W / T halved along a gradient: return (2 * (a @ self.weight) => return ((a @ self.weight)
sll, 2 W / T halved for a rival: alpha = 2 * (a @ self.weight) => alpha = (a @ self.weight)
sll, excess of the Jacobian halved: 1 + 4 * lam * (lam - 1) => 1 + 2 * lam * (lam - 1)
smooth sll, all neurons together halved: self.back * self.forth * curved => self.back / 2 * self.forth * curved
l2 attention, remainder halved: vector_norm(worst, dim=-2).amax(-1) / 2 => vector_norm(worst, dim=-2).amax(-1) / 4
l2 windows, a token's own term halved: 2 * rows.amax(-1) + 2 * weighted => rows.amax(-1) + 2 * weighted
scaled cosine, column sums left out for keys: tau * (q + root * k) => tau * (q + k)
scaled cosine, column sums left out for keys of all heads: tau * (whole[0] + root * whole[1]) => tau * (whole[0] + whole[1])
scaled cosine, keys halved: tau * (q + root * k) => tau * (q + root * k / 2)
scaled cosine, queries halved: tau * (q + root * k) => tau * (q / 2 + root * k)
scaled cosine, values halved: heads = root * v + tau => heads = root * v / 2 + tau
dot products, quick, keys halved: + spectral_norm_upper(left) => + spectral_norm_upper(left) / 2
dot products, quick, queries halved: self.m = spectral_norm_upper(centred) => self.m = spectral_norm_upper(centred) / 2
dot products, quick, keys halved in the spread: 2 * far + math.sqrt(2) * UP => 2 * far + math.sqrt(0.5) * UP
dot products, quick, queries halved in the spread: self.spread = 2 * far => self.spread = far
dot products, quick, slope halved: (kappa * self.lam).clamp(max=0.5) => (kappa * self.lam).clamp(max=0.25)
[certificates] tests/certificates/test_lipschitz.py
lipschitz, sqrt(2) left out: math.sqrt(2) * UP * move(radius) => UP * move(radius)
lipschitz, no identity: 1 + float(self.most) * self.body.everywhere => float(self.most) * self.body.everywhere
[certificates] tests/certificates/test_local.py
local, one rival is enough: (rival_margins > margin_drop(radius)).all(1) => (rival_margins > margin_drop(radius)).any(1)
[certificates] tests/certificates/test_smoothing.py
alpha not shared over looks: alpha / len(sizes) => alpha
p of a half or less: if p > 0.5 else 0.0 => if p > 0.3 else 0.0
a tie is a vote: logits.argmax(1)[first > second] => logits.argmax(1)[first >= second]
one stream of noise for all images: default_rng([seed, index]) => default_rng([seed, 0])
[certificates] tests/certificates/test_smoothing.py -k clopper
Clopper-Pearson, upper bound's parameters: beta.ppf(alpha, count, n - count + 1) => beta.ppf(alpha, count + 1, n - count)
[commands] tests/commands/test_publish.py
published, a row of older code: if not as_built or not record.codes.items() <= present[row].items() => if not as_built
published, rows on other images: for other in others if isinstance(other, Built)} | built => for other in []} | built
a number moves without a reason: if moved and not reason: => if moved and reason == "none":
rules change within a version: before.get("version") != now["version"] => before.get("version") == now["version"]
numbers that no image adds up to: for fault in contradictions(row.record, row.images)] => for fault in ()]
a file of another row: if own != row: => if own == "":
[commands] tests/commands/test_diff.py
a row that moved breaks nothing: any(not cell[0].startswith("sha256 of ") => any(cell[0].startswith("sha256 of ")
[commands] tests/commands/test_diff.py -m slow -k counts_by
a changed track touches no row: touched & (read | shared) => touched & read
[data] tests/data/test_prepare.py
links to folders in a class are passed over: path.is_symlink() or image or => image or
test and validation swapped: (train, validation, test) => (train, test, validation)
labels of other images: Images(self.pixels[index], self.labels[index] => Images(self.pixels[index], self.labels[: len(index)]
validation images in the training split: train, validation = _hold_out => _, validation = _hold_out
pixels by 256: / np.float32(self.levels) => / np.float32(self.levels + 1)
evaluation images by chance: default_rng(seed).permutation(n)[:count] => default_rng().permutation(n)[:count]
[data] tests/data/test_prepare.py -k unseen
unseen images that are the evaluation's: np.setdiff1d(np.arange(len(test)), evaluated) => evaluated
[evaluation] tests/evaluation/test_evidence.py
gate, certified, but wrong when clean: (radius > 0) & (margin <= 0) => (radius > 0) & (margin < -1e9)
gate, certified, but broken: f"{attack}:success") & (distance <= radius => f"{attack}:success") & (distance > radius
gate, certified, but broken by a probe: broken & (norm == "L2") & (eps <= => broken & (norm == "Linf") & (eps <=
a tie is right: proportion(column(evidence, "clean_margin") > 0) => proportion(column(evidence, "clean_margin") >= 0)
[evaluation] tests/steps/test_attack.py
adaptive attacks not counted: (*track.suites.values(), adaptive) => (*track.suites.values(),)
[evaluation] tests/evaluation/test_run_attack.py
every attacked image is broken: state.robust[index[broken]] = False => state.robust[index] = False
[evaluation] tests/steps/test_corrupt.py
Wilson of copies, another level: ndtri(0.975) => ndtri(0.95)
[evaluation] tests/evaluation/replay/test_verify.py -k rounding
tolerance a thousand times as large: TOLERANCE = 1e-4 => TOLERANCE = 1e-1
[evaluation] tests/evaluation/replay/test_tampering.py -k outside
ball not checked: (moved[threat.norm] > threat.eps + ROUNDING) => (moved[threat.norm] > 100 * threat.eps)
box not checked: (low < 0) | (high > 1) => (low < 0) & (high > 1)
[evaluation] tests/evaluation/replay/test_tampering.py -k raised
a smaller radius will do: radius < radii[image] * (1 - SHORT) => radius < 0
[evaluation] tests/evaluation/replay/test_tampering.py -k left_out
an attack of the track may be left out: due.keys() | reported.keys() => reported.keys()
[evaluation] tests/evaluation/replay/test_tampering.py -k without_a_certificate
certified numbers without a certificate: record.certified and not given => False
[evaluation] tests/evaluation/test_indicators.py
margin's gradients, threshold turned round: words, norms.zeros <= allowed => words, norms.zeros >= allowed
allowance ten times as large: ALLOWED_SHARE = 0.01 => ALLOWED_SHARE = 0.1
last doubling, four allowances: <= 2 * allowed => <= 4 * allowed
[evaluation] tests/evaluation/test_audit.py
ties may be certified: if not (radii == 0).all() => if not (radii >= 0).all()
plants, radius beyond the counterexample: if not radius < plant.distance => if not radius < 100 * plant.distance
[evaluation] tests/evaluation/test_evaluate.py
a certificate of a model with hooks: if replaced or any(vars(layer)[hooks] for hooks in HOOKS) => if replaced
a folder of another model with equal weights: (images, labels, *weights, *asked) => (images, labels, *weights)
undecided images are robust: (robust & decided_all).cpu() => robust.cpu()
gate, radius beyond an attack: (broken & reached).any() => (broken & ~reached).all()
[evaluation] tests/evaluation/test_asked_again.py
asked again, rounding 100 times as large: ROUNDING.get(before.dtype, 0.0) * => 100 * ROUNDING.get(before.dtype, 0.0) *
[layers] tests/layers/test_description.py
strides of a stem forgotten: convolution.stride = (stride, stride) => convolution.stride = (1, 1)
blocks that no limit counts: return sizes.get("depth", 0) + sizes.get("cls_attn_layers", 0) + mask => return mask
[layers] tests/certificates/bounds/test_l2_attention.py
l2 attention, constant of a column rounded down: H_LARGEST = 0.278465 => H_LARGEST = 0.278463
l2 attention, middle term of the constant halved: tokens**0.25 + 2 * c => tokens**0.25 + 1 * c
[layers] tests/certificates/bounds/test_attention_grid.py
grid attention, move of the weights left out: (moved + norms.value * radius => (norms.value * radius
grid attention, variance too small: (P @ squares)[..., 0] - (P @ y) => (P @ squares)[..., 0] - 2 * (P @ y)
[layers] tests/certificates/bounds/test_competitive_attention.py
competition, step of 2.1 for 2: moved = excess * ROOT => moved = 1.05 * excess * ROOT
[layers] tests/layers/test_competitive_attention.py
competition, level off by one: torch.arange(1, ordered.shape[-1] + 1 => torch.arange(2, ordered.shape[-1] + 2
competition, wrong neighbour for the keys: [(-down, -right) for down => [(down, -right) for down
cone, own entry not balanced: torch.cat([-above.sum(-1 => torch.cat([above.sum(-1
[layers] tests/certificates/bounds/test_lemmas.py
grid attention, queries halved in the spread: w = 2 * norms.query * self.farthest => w = norms.query * self.farthest
grid attention, keys halved in the spread: 2**0.5 * norms.key * self.query_sizes => 0.5**0.5 * norms.key * self.query_sizes
grid attention, queries halved: (norms.query * first + => (norms.query * first / 2 +
grid attention, keys halved: norms.key * (squares + 1e-300).sqrt() => norms.key * (squares + 1e-300).sqrt() / 2
[leaderboard] tests/leaderboard/test_rank.py
ranks turned round: 1 + (signs == -1).sum => 1 + (signs == 1).sum
no Bonferroni: _most(counted, ERROR / comparisons) => _most(counted, ERROR)
one-sided McNemar: binom.ppf(error / 2, apart, 0.5) => binom.ppf(error, apart, 0.5)
[leaderboard] tests/leaderboard/test_model_charts.py
an image broken at the radius stands: radii + ROUNDING, side="right" => radii - 1e-6, side="right"
[leaderboard] tests/leaderboard/test_site.py -k lost
Linf ball in l2, no root: pixels**0.5 if threat.norm == "Linf" => pixels if threat.norm == "Linf"
[leaderboard] tests/leaderboard/test_model_page.py
a claim of another radius compared: rel_tol=1e-3 => rel_tol=0.9
[leaderboard] tests/leaderboard/test_study_claims.py
a claim of other data compared: if claim.track != track: => if False:
[pipeline] tests/pipeline/test_locks.py
a lock that was cut short passes: isinstance(content.get("stages"), dict) => True
[pipeline] tests/pipeline/test_gpus.py
all rows on the first GPU: together[place % len(together)] => together[0]
the shortest row first: return -seconds, not => return seconds, not
[pipeline] tests/steps/test_fine_tuning.py
a row before the one it starts from: {start_of(row)} & starts => set()
[records] tests/records/test_regression.py -k named
distances within certified radii pass: if at is not None and at < radius: => if at is not None and at < 0:
[records] tests/records/test_regression.py -k one_image
no attacked image may differ: max(1, ours[name][1] // published.n) => ours[name][1] // published.n
[records] tests/records/test_paired.py
McNemar, ties are losses: sum(a < b for a, b in pairs) => sum(a <= b for a, b in pairs)
paired, sign of the second row: contrast((1, -1, 1), samples => contrast((1, 1, 1), samples
[records] tests/records/test_study_table.py
Welch, one-sided: stdtrit(freedom, 1 - error / 2) => stdtrit(freedom, 1 - error)
[records] tests/records/test_regression.py
regression, no Bonferroni: FALSE_ALARMS / max(1, sum( => FALSE_ALARMS / min(1, sum(
regression, two images may differ: theirs[name][0]) > allowed => theirs[name][0]) > allowed + 1
[records] tests/records/test_contributed.py
broken images still count: "0" if image in lost else digit => digit
[records] tests/evaluation/replay/test_tampering.py -k counts
sums over images not compared: or sum(score) != count =>
[runtime] tests/runtime/test_code.py
an edited file is not seen: path.as_posix().encode() + content => path.as_posix().encode()
[runtime] tests/runtime/test_errors.py
written in place: handle.fileno()) os.replace(aside, path) => handle.fileno()); path.write_bytes(aside.read_bytes())
[runtime] tests/runtime/test_clock.py
GPUs of a step counted once: own["wall_seconds"] * gpus => own["wall_seconds"]
[sandbox] tests/hostile/test_escapes.py
times of files allowed: "utimensat", =>
locks allowed: ("connect", "flock") => ("connect",)
free space on the disk to be seen: "statfs", "fstatfs", =>
sentences of other tracks to be read: "sklearn/datasets/data", "benchmark/data/reviews", => "sklearn/datasets/data",
[sandbox] tests/hostile/test_rows.py -m slow -k no_label
labels to be read by a model: read=[row.weights], seconds=CALL_SECONDS => read=[row.weights, row.data], seconds=CALL_SECONDS
[sandbox] tests/hostile/test_rows.py -m slow -k training_sees
test images to be read by training: read = [*(row.data / name for name in SEEN), => read = [row.data,
[sandbox] tests/hostile/test_places.py -k forged
preparations that a recipe does not have: != [step.name for step in spec.prepare] => is None
[sandbox] tests/hostile/test_places.py -k gradient
a gradient of another shape: slope.shape != shape => slope.ndim != len(shape)
[sandbox] tests/sandbox/test_model.py -k certified
a rebuilt network that is nearly the row's: not torch.equal(own, rebuilt) => not torch.allclose(own, rebuilt, atol=1e-2)
a network that answers otherwise, rebuilt: if not torch.equal(*(logits => if False and torch.equal(*(logits
timm's networks in a certified row: claimed.description(not row.described) => claimed.description(True)
[sandbox] tests/sandbox/test_model.py -k garbage
garbage closes a process's files: gc.freeze() => pass
[sandbox] tests/sandbox/test_model.py -k random_or_answer
a random network, rebuilt: if not row.described and row.submission.division == "open": => if False:
[specs] tests/specs/test_starting.py -k state_dict
a model beside its state_dict passes: and not gap <= ROUNDING * => and not gap >= 0 *
[specs] tests/training/test_own_components.py -k no_file
own components, a name of the benchmark allowed: components.taken(path.stem) => ""
[specs] tests/data/test_tracks.py
a fraction turned round: float(fraction[1]) / float(fraction[2]) => float(fraction[2]) / float(fraction[1])
[specs] tests/specs/test_refusals.py
Linf radius of more than the whole range: self.norm == "Linf" and self.eps > 1: => self.norm == "Linf" and self.eps > 255:
an attack under AutoAttack's name: "autoattack" in name.replace("_", "") => name == "autoattack_"
l2 radius beyond all images: threat.eps > diameter => threat.eps > diameter**2
[specs] tests/studies/test_seeds.py -k settings
seeds not from the row's own: range(first, first + TRAININGS) => range(TRAININGS)
[steps] tests/steps/test_attack.py
broken images stay robust: robust = clean.correct & state.robust & after.correct => robust = clean.correct
[steps] tests/hostile/test_rows.py -m slow -k fitted_to_the_noise
smoothing, votes not held to new noise: columns["smoothed_l2"], => 0 * columns["smoothed_l2"],
[steps] tests/hostile/test_rows.py -m slow -k verdict_is
the verdict's images not asked again: ASKED_AGAIN, final=final) => ASKED_AGAIN)
[steps] tests/hostile/test_steps.py -m slow -k otherwise
another function where suites attack: compare(before.to(dtype), => (lambda *_: None)(before.to(dtype),
[steps] tests/hostile/test_steps.py -m slow -k keeps_nothing
a crash hides the gradients before it: ask_again(work, subject)[1]}) => (0, 0, 0)})
[steps] tests/hostile/test_steps.py -m slow -k attack_alone
an attack's gradients not compared: gradients[attack] = tuple(answered[f"{attack}:gradients"].tolist()) => pass
[evaluation] tests/evaluation/test_asked_again.py
rounding by the largest logit: (before.double().amax(1) - before.double().amin(1)) / 2 => 1 + before.double().abs().amax(1)
[evaluation] tests/evaluation/test_asked_again.py
gradients that nobody can compare pass: kept - clear > max(2, kept / 2) => False
[steps] tests/steps/test_base.py
code that changed while a step ran: != inputs or digests != inputs["code"] => != inputs
[steps] tests/steps/test_base.py -k touched
a result that was touched is kept: files.sha256_file(folder / name) == digest => True
[steps] tests/steps/test_pretrained.py
weights of others pass for trained here: "re-evaluated" if started.weights else "rebuilt" => "rebuilt"
[steps] tests/specs/test_rules.py -k closed
random models are smoothed: super().applies(row) and row.submission.division == "closed" => super().applies(row)
[steps] tests/steps/test_attack.py -m slow -k refutes
the gate left out: evidence.check_sandwich(merged, row.name) => merged
[steps] tests/steps/test_collect.py
the sandbox of one step for that of all: if p in str(value) => if p in str(before)
[studies] tests/studies/test_cells.py -m slow -k weights
a cell from weights of another seed: networks[init.cell, seed] if => networks[init.cell, self.study.seeds[0]] if
[studies] tests/studies/test_cells.py -k earlier
a cell from one that comes later: init.cell not in before => init.cell not in cells
[studies] tests/studies/test_points.py -k certified
certified, though wrong when clean: right & (radii >= radius) => (radii >= radius)
certified, at the radius itself not: right & (radii >= radius) => right & (radii > radius)
[studies] tests/studies/test_points.py
points rounded too far: DIGITS - 1 - math.floor => DIGITS - 4 - math.floor
[studies] tests/studies/test_studies.py -k bad
more images than the test split has: grid.images > most: => grid.images > 100 * most:
[training] tests/training/test_objectives.py
TRADES, sign of the divergence: natural + self.beta * divergence => natural - self.beta * divergence
[training] tests/training/test_worst_logits.py -k gloro
GloRo, further logit lowered: logits + move * gaps[top] => logits - move * gaps[top]
[training] tests/training/test_worst_logits.py
worst logits, kappa for its complement: eps_factor * (1 - self.kappa) => eps_factor * self.kappa
ball and box, above and below swapped: (spread + shift, spread - shift) => (spread - shift, spread + shift)
[training] tests/training/test_loop.py
cosine rises: 0.5 * (1 + math.cos(math.pi * done)) => 0.5 * (1 - math.cos(math.pi * done))
margin, raised, not lowered: logits - margin * nn.functional.one_hot => logits + margin * nn.functional.one_hot
selection on training images: (*train_split, *validation_split) => (*train_split, *train_split)
the last of equal epochs kept: done.scores[-1] > done.best_score => done.scores[-1] >= done.best_score
[training] tests/training/test_loop_options.py
warm-up an epoch early: epoch / spec.warmup_epochs) => (epoch + 1) / spec.warmup_epochs)
EMA not scored: self.ema.module if self.ema else self.model => self.model
[training] tests/training/test_own_components.py -k one_line
own components, an objective that is none: isinstance(objective, Objective) => objective is None
[training] tests/training/test_augment.py -k called
mixing, every batch: {"prob": spec.mix_chance => {"prob": 1.0
[training] tests/training/test_selection.py
patience an epoch too long: warmup_epochs) >= selection.patience => warmup_epochs) > selection.patience
[training] tests/training/test_loop.py -k in_no_norm
zeros that stay count in the clipped norm: gradient.mul_(mask) => gradient.mul_(1)
[training] tests/training/test_loop.py -k in_float32
scores in TensorFloat-32: with tensor_float32(False): value = => with tensor_float32(True): value =
[training] tests/training/test_gpu_steps.py -k memory
scores take all images at once: 1.0), len(labels), batch_size, 1) => 1.0), len(labels), batch_size, 99)
[sandbox] tests/pipeline/test_forks.py
one network that fails ends the study: if go_on and error.code != INTERRUPTED: => if error.code == INTERRUPTED:
[studies] tests/studies/test_studies.py -k attacks_the_images
a study attacks as many as the rows: "attacked": None} => "attacked": rules.attacked}
[records] tests/leaderboard/test_rank.py
the weakest row first: (*(-numbers[key].value if key => (*(numbers[key].value if key
"""


class Mistake(NamedTuple):
    """A wrong edit: `old` becomes `new`, and one of `tests` (arguments of pytest) should fail."""

    room: str
    what: str
    old: str
    new: str
    tests: str


def parsed(text: str) -> Iterator[Mistake]:
    """Yield the mistakes of a list like LIST."""
    room = tests = ""
    for line in text.strip().splitlines():
        if line.startswith("["):
            room, tests = line.removeprefix("[").split("] ")
            continue
        what, _, edit = line.partition(": ")
        old, _, new = edit.partition(" =>")
        yield Mistake(room, what, old, new.strip(), tests)


MISTAKES = list(parsed(LIST))


def pattern(snippet: str) -> re.Pattern[str]:
    """Return a regular expression for the snippet that allows any space between its words and signs."""
    return re.compile(r"\s*".join(re.escape(part) for part in re.findall(r"\w+|[^\w\s]", snippet)))


def places(checkout: Path, snippet: str) -> list[tuple[Path, re.Match[str]]]:
    """Return every occurrence of the snippet, with its file."""
    files = [path for folder in FOLDERS for path in sorted((checkout / folder).rglob("*.py"))]
    return [(path, match) for path in files for match in pattern(snippet).finditer(path.read_text())]


def room_of(path: Path) -> str:
    """Return the room of a file: the folder below benchmark/, else leaderboard."""
    return path.parts[1] if path.parts[0] == "benchmark" else path.parts[0]


@contextmanager
def planted(path: Path, match: re.Match[str], new: str) -> Iterator[None]:
    """Write the mistake into the file; afterwards restore the file, with its old times."""
    text, about = path.read_bytes(), path.stat()
    try:
        path.write_text(match.string[: match.start()] + new + match.string[match.end() :])
        yield
    finally:
        path.write_bytes(text)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def run_tests(checkout: Path, tests: str, timeout: float) -> tuple[str, str]:
    """Return the result of the tests, and the first that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", MARKERS, *tests.split()]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    process = subprocess.Popen(
        command, cwd=checkout, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException as problem:  # also Ctrl-C: the tests' own processes end with them
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(problem, subprocess.TimeoutExpired):
            return "timeout", f"no end within {timeout:g} s"
        raise
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    result = {0: "MISSED", 1: "caught"}.get(process.returncode, "error")
    return result, failed[1] if failed else ""


def tried(checkout: Path, mistake: Mistake, timeout: float, only_find: bool) -> tuple[str, str]:
    """Return the result of one mistake, and the test that failed or the place of the snippet."""
    occurrences = places(checkout, mistake.old)
    if len(occurrences) != 1:
        return "not found", f"{len(occurrences)} times {mistake.old!r}"
    ((path, match),) = occurrences
    where = path.relative_to(checkout)
    if room_of(where) != mistake.room:
        return "not found", f"{mistake.old!r} is in {where}"
    if only_find:
        return "found", str(where)
    with planted(path, match, mistake.new):
        return run_tests(checkout, mistake.tests, timeout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, nargs="?", help="a checkout to break, which nobody works in")
    parser.add_argument("--only", default="", metavar="WORD", help="of the mistakes with this word")
    parser.add_argument("--list", action="store_true", help="print the mistakes and stop")
    parser.add_argument("--find", action="store_true", help="print the file of each mistake; change nothing, run no test")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="of one mistake's tests")
    given = parser.parse_args()
    chosen = [mistake for mistake in MISTAKES if given.only in f"{mistake.room} {mistake.what} {mistake.tests}"]
    if given.list:
        for mistake in chosen:
            print(f"{mistake.room}: {mistake.what}: {mistake.old} => {mistake.new} ({mistake.tests})")
        return
    if given.checkout is None or not (given.checkout / FOLDERS[0]).is_dir():
        parser.error("name a checkout of this project")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the file is restored
    checkout, counts, begun = given.checkout.resolve(), Counter[tuple[str, str]](), time.monotonic()
    for mistake in chosen:
        start = time.monotonic()
        result, where = tried(checkout, mistake, given.timeout, given.find)
        counts[mistake.room, result] += 1
        seconds = time.monotonic() - start
        print(f"{result:9}  {seconds:5.0f} s  {mistake.room:12}  {mistake.what:60}  {where}", flush=True)
    for (room, result), count in sorted(counts.items()):
        print(f"{room:12}  {count} {result}")
    print(f"{len(chosen)} mistakes in {time.monotonic() - begun:.0f} s")
    sys.exit(any(result not in ("caught", "found") for _, result in counts))


if __name__ == "__main__":
    main()
