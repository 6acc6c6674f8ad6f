"""The steps of a row, one a file; protocol.py says what each is part of."""
