"""Networks mutated at random, in attributes, weights, types, hooks, methods and parts: no certificate is false."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from ball_search import breaks
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutations import BASES, CASES, IMAGES, MUTATIONS, base, mutated, predicted, trial
from searched import draws, few

MUTANTS = {
    "which": st.integers(0, CASES - 1),
    "mutations": st.lists(
        st.tuples(st.sampled_from(sorted(MUTATIONS)), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=3
    ),
}
SHARED = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
PHASES = (Phase.generate,)  # shrinking a failure takes minutes; the mutations in its message repeat it


@pytest.mark.parametrize("examples", [15, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.long])])
def test_no_mutant_has_a_false_certificate(examples) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=examples, phases=PHASES, **SHARED)
    @given(**MUTANTS)
    def tried(which, mutations) -> None:
        outcome = trial(which, mutations)
        assert not outcome.false, (which, mutations, outcome)
        seen[outcome.end] += 1
        seen["attacked"] += outcome.attacked

    tried()
    assert seen["accepted"] > examples / 5
    assert seen["refused"] > examples / 5
    assert seen["attacked"] > examples / 2


@pytest.mark.slow
@pytest.mark.parametrize("turn", draws([3], [52]))
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_every_mutation_alone_leaves_no_false_certificate(name, turn) -> None:
    outcomes = {which: trial(which, [(name, turn, 7 * turn + which)]) for which in range(0, CASES, 5)}
    assert not {which: outcome for which, outcome in outcomes.items() if outcome.false}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_mutation_leaves_networks_that_run(name) -> None:
    """Otherwise its trials would be vacuous."""
    networks = (mutated(which, [(name, 3, 21 + which)])[1] for which in range(0, CASES, 5))
    assert any(predicted(network) is not None for network in networks)


@pytest.mark.parametrize(
    "which", few(range(len(BASES), CASES, 4), [*range(len(BASES) + 2, CASES, 4), *range(len(BASES) + 1, CASES, 2)])
)
def test_bases_are_certified_and_attacks_succeed_beyond_their_radii(which) -> None:
    """Otherwise the fuzzer would attack nothing, or without success."""
    certificate, model = base(which)
    labels = model(IMAGES).argmax(1)
    radii = certificate.certify(model, IMAGES, labels, precision=0.05)
    assert (radii > 0).all()
    double, broken = base(which)[1].double(), []
    for factor in (1.0, 10.0, 100.0, 1000.0):
        triples = zip(IMAGES, labels.tolist(), (factor * radii).tolist(), strict=True)
        broken.append(any(breaks(model, double, *triple) for triple in triples))
    assert not broken[0]
    assert any(broken[1:])


@pytest.mark.parametrize("wrong", [lambda y: y * torch.nan, lambda y: 0 * y, lambda y: -y])
def test_an_answer_that_is_nan_tied_or_another_class_is_detected(wrong) -> None:
    _, model = base(0)
    label = int(model(IMAGES[:1]).argmax())
    double = base(0)[1].double()
    assert not breaks(model, double, IMAGES[0], label, 1e-6)
    assert breaks(lambda x: wrong(model(x)), double, IMAGES[0], label, 1e-6)
