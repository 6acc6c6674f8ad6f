"""The fast engine: the published attacks on many images side by side. No attack by itself; `autoattack` and `apgd` run it."""
