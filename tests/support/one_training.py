"""What a training of one epoch leaves, as JSON values."""

from __future__ import annotations

TRAINING = {
    "epochs": 1, "selected_epoch": 1, "selected_by": "score", "validation_score": 0.5, "seed": 0, "device": "cpu",
    "precision": "32-true",
}  # fmt: skip
