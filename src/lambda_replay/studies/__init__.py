"""Studies: one .toml file describes many runs, on this machine or a cluster; ``analysis`` compares their scores.

plan.py reads the file, layout.py says where everything is stored, attempt.py executes one run in its own process,
execute.py executes many on this machine and cluster.py on Ray, and status.py reports their progress.
"""
