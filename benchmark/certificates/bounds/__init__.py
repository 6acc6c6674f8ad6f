"""Local bounds, as in LoFAST (Havens et al. 2024): how far an image's margins can fall when the image moves a little.

layer_bound.py says what the bound of a layer is; attention.py, sll.py and others give it for their layers. network_bound.py
composes the bounds of a network's layers. spectral.py bounds norms of matrices, rounding.py the rounding of float32.
"""
