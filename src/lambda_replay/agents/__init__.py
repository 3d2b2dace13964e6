"""One file per algorithm, each a composition of the rooms below; ``table.py`` lists them."""
