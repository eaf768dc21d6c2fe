"""A build makes the type stubs, and starts from nothing: build/lib may have what is gone since."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build


class FreshBuild(build):
    """The command `build`, in an empty folder."""

    def run(self) -> None:
        """Empty the folder, and build in it."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


runpy.run_path(str(Path(__file__).parent / "stubs/make.py"), run_name="__main__")
setup(cmdclass={"build": FreshBuild})
