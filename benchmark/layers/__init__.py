"""Building blocks of models. Normalisation is a layer of the model, so that radii are in pixels."""
