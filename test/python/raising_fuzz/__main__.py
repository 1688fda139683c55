import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import driver  # noqa: E402

sys.exit(driver.main())
