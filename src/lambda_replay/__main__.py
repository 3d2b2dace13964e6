"""``python -m lambda_replay`` is the ``lambda-replay`` command."""

import sys

from lambda_replay.cli import main

if __name__ == "__main__":
    sys.exit(main())
