"""Version of the project, which the build, the package and the wheel read here."""

__version__ = "0.2.0"
