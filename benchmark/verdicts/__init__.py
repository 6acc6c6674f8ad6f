"""What counts as a correct prediction, and as inside a ball: margins, predictions, distances."""
