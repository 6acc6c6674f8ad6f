"""The pages of a track's site, a module a kind: each writes its own from a `Board`."""
