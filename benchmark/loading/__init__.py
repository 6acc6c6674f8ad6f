"""Submissions, tracks and params.yaml read; models built, weights loaded."""
