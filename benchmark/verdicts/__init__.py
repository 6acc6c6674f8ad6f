"""What counts as right, and as inside a ball: margins, predictions, distances."""
