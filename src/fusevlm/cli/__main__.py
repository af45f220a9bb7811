"""``python -m fusevlm.cli``."""

import sys

from fusevlm.cli import main

sys.exit(main())
