"""One module for each thing that grows; `python -m scale` runs every one that is here."""
