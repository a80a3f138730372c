"""Settings for the whole suite. Machines are shared and noisy, so no test fails for being slow."""

from hypothesis import settings

settings.register_profile("concilium", deadline=None)
settings.load_profile("concilium")
