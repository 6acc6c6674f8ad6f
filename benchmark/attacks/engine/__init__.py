"""The fast engine: the published attacks on many images in parallel; the attacks `autoattack` and `apgd` run it."""
