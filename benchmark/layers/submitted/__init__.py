"""The blocks and attention layers that a submission reports of its own model."""
