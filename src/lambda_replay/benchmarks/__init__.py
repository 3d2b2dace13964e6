"""Measuring speed on this machine, ours and our peers' at equal settings; printing it is the command line's."""
