"""Training: one objective a file, `objective(attack, **parameters) -> Objective`; `loop` runs it.

Adversarial training is handed its attack; no objective imports one.
"""
