"""One file per algorithm, built from ``replay`` and ``learning``; ``table.py`` lists them."""
