"""Processes that run code which nobody here wrote, and what holds them."""
