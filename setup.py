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


here = Path(__file__).parent
runpy.run_path(str(here / "stubs/make.py"), run_name="__main__")
lines = (here / "README.md").read_text(encoding="utf-8").splitlines()
setup(
    cmdclass={"build": FreshBuild},
    # A package index has no file for the picture to be loaded from.
    long_description="\n".join(line for line in lines if not line.startswith("![")),
    long_description_content_type="text/markdown",
)
