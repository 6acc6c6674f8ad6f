"""What YAML asks for: typed, frozen, imports the runtime alone."""
