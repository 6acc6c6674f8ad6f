"""The auditor: tries to break a row's certificates. `auditor.py` runs the parts; each raises on the first thing that broke.

balls.py attacks certified balls, layers.py the bounds of single layers, planted.py plants ties and counterexamples.
"""
