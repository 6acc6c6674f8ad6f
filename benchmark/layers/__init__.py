"""Shared building blocks of models; normalisation stands inside the model, so radii stay in pixels."""
