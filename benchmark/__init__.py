"""robust-vit-bench: clean, attacked and certified accuracy of vision transformers, per image, with evidence."""
