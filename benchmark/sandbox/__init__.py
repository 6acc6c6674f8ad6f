"""Sandboxed processes for untrusted code: their confinement, their messages, and what each of them serves."""
