"""The command `rvb`, one file a group of commands."""
