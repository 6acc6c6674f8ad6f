"""Can the attacks be trusted? Probes of a model, comparisons of the suites' attacks, and failure indicators from both.

After Carlini et al. 2019 (On Evaluating Adversarial Robustness, section 5), Athalye et al. 2018 (Obfuscated Gradients,
section 3.1) and Pintor et al. 2022 (Indicators of Attack Failure). A failing indicator does not prove that gradients are
masked, and the lack of one does not prove robustness: indicators say where an attacked accuracy may be too high.
"""
