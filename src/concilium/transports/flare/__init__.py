"""Studies across machines, on NVIDIA FLARE: kits for house and hospitals, their processes, and jobs that carry no
code."""
