"""Attacks: `attack(model, images, labels, threat, *, seed, **parameters) -> adversarial images`; one a file.

images (n, c, h, w) float32 in [0, 1], labels (n,) int64. The result has the shape of the images and lies in the threat
model's ball and in [0, 1]. Without success it may be any image of the ball, such as the clean one. The harness projects and
tests each result again. A module may define
- `components`: parts of the attack that run one after another on the images still robust; it takes `component=`;
- `engines`: several implementations; it takes `engine=`;
- `per_image = True`: its random numbers depend on each image alone; it takes `indices=`, the images' numbers in the data
  set, and `slots=`, the most images in one call of the model.
"""
