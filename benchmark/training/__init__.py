"""Training: one objective a file, `objective(parameters, attack) -> Objective`; `loop` runs it.

Adversarial training is handed its attack; nothing here imports one.
"""
