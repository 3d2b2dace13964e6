"""Studies: a .toml file becomes many runs, here or on a cluster; comparing scores is what ``analysis`` does.

plan.py reads the file, layout.py says where everything lies, attempt.py conducts one run in a process of its own,
execute.py many of them on this machine, cluster.py on Ray, and status.py tells how far they are.
"""
