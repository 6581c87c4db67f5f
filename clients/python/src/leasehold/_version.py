# scripts/set-version writes it.
__version__ = "0.1.0"
