"""What everything stands on: errors, files, scratch folders, which files a module imports. Imports nothing of the project."""
