"""What a model looks for in images: pictures, and measures of them. Nothing here decides a verdict."""
