"""DVC: its generated files, and running them."""
