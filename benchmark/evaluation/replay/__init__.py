"""Records replayed from stored bytes (weights, adversarial images, certificates), and images that others bring."""
