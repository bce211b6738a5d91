"""`python -m kerasfeed`: the command, if its script is not on PATH."""

import sys

from kerasfeed.cli.main import main

sys.exit(main())
