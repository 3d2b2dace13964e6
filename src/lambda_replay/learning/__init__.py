"""Networks and their training, in PyTorch; files whose names begin with ``fast`` or ``fused`` exist only for speed."""
