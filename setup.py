"""A build starts from nothing: what an earlier one left in build/lib would be packed as well."""

import shutil

from setuptools import setup
from setuptools.command.build import build


class FreshBuild(build):
    """The command `build`, in an empty folder."""

    def run(self) -> None:
        """Empty the folder, and build in it."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build": FreshBuild})
