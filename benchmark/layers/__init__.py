"""Shared building blocks of models; normalisation is a layer of the model, so that radii are in pixels."""
