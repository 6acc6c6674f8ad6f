"""Can the attacks be trusted? Probes of a model, the suites' verdicts held against each other, and the judgement of both.

After Carlini et al. 2019 (On Evaluating Adversarial Robustness, section 5), Athalye et al. 2018 (Obfuscated Gradients,
section 3.1) and Pintor et al. 2022 (Indicators of Attack Failure). A signal that is unsound proves no masked gradient, and
none at all proves no robustness: the signals say where an attacked accuracy may be too high.
"""
