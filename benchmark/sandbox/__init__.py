"""Sandboxed processes for untrusted code: what holds them, the messages that they answer, and what each of them runs."""
