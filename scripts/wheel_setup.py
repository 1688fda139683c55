"""setup.py of the wheel that scripts/build-wheel.sh makes: the package with compiled libraries, which any Python loads by ctypes."""
from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Compiled(Distribution):
    """Goes where packages for one kind of machine go."""

    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    """No library in it is made for one version of Python."""

    def get_tag(self):
        return "py3", "none", "manylinux_2_34_x86_64"


setup(distclass=Compiled, cmdclass={"bdist_wheel": Wheel})
