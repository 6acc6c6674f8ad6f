"""The mathematics beneath the certificates: norms, bounds of layers, bounds of networks, rounding."""
