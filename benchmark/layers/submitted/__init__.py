"""What a submission's own model says of its blocks and its attention."""
