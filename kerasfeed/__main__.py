"""`python -m kerasfeed`: the command, where its script is not on the path."""

import sys

from kerasfeed.cli.main import main

sys.exit(main())
