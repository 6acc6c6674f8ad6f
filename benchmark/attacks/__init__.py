"""Attacks: `attack(model, images, labels, threat, *, seed, **parameters) -> adversarial images`; one a file.

images (n, c, h, w) float32 in [0, 1], labels (n,) int64. The result has the shape of the images and lies in the threat
model's ball and in [0, 1]; where nothing was found it may be anything in the ball, such as the clean image. The harness
trusts none of it: it projects and re-tests what comes back. A module may define
- `components`: the attack has parts that run one after another on the images still robust, and takes `component=`;
- `engines`: it has several implementations, and takes `engine=`;
- `per_image = True`: its random numbers depend on each image alone, and it takes `indices=`, the images' numbers in the data
  set, and `slots=`, how many images may go into one call of the model.
"""
