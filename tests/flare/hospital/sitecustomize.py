"""For processes of a network: no hospital has what only tests need, and numba loads all of scipy's algebra where it
finds it."""

import sys

sys.modules["scipy"] = None
