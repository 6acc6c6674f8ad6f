"""Attacks: `attack(model, images, labels, threat, *, seed, **parameters) -> adversarial images`; one a file.

images (n, c, h, w) float32 in [0, 1], labels (n,) int64. The result has the shape of the images and lies in the threat
model's ball and in [0, 1]; where nothing was found it may be anything in the ball, such as the clean image. The harness
believes none of it: it projects and re-tests what comes back. An attack made of parts that run one after another on the
images still standing names them in `components`, and takes `component=`. One that names `engines` takes `engine=`; one that
says `per_image = True` draws random numbers that belong to each image, and takes `indices=`, the images' numbers in the data
set, and `slots=`, how many images may go into one call of the model.
"""
