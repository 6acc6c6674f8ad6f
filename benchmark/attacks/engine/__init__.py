"""The fast engine: published attacks on many images in parallel, for the attacks `autoattack` and `apgd`."""
