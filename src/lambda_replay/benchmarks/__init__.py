"""Measuring speed on this machine, ours and that of our peers at equal settings; what is printed of it is the command line's."""
