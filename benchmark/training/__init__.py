"""Training: one objective a file, `objective(attack, **parameters) -> Objective`; `loop` runs it.

A submission's folder may hold its own objectives, penalties and preparations.
Adversarial training is handed its attack; no objective imports one.
"""
