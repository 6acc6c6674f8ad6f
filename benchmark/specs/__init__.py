"""Typed, frozen values of the YAML files, and loading them. Imports only the runtime."""
