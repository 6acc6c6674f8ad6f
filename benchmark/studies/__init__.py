"""Papers' tables and figures: grids of trainings, and what is measured of each network."""
