"""Networks and their training, in PyTorch; ``fast_networks.py`` and ``fused_adam.py`` exist only for speed."""
