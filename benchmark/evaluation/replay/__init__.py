"""Replay Records from stored bytes (weights, adversarial images, certificates), and evaluate contributed images."""
