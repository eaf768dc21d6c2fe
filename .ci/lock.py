"""Print the packages of a report of `pip install --report`, with their versions.

`make lock` uses it. Hashes are left out: a report has those of the files for one machine only.
"""

import json
import sys
from pathlib import Path

report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
found = {(each["metadata"]["name"], each["metadata"]["version"]) for each in report["install"]}
print("# What `pip install 'meshdsl[train]'` installs, written by `make lock`.")
for name, version in sorted(found, key=lambda each: each[0].lower()):
    if name != "meshdsl":
        print(f"{name}=={version}")
