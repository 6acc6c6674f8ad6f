"""The only readers of submissions/, benchmark/tracks/ and params.yaml."""
