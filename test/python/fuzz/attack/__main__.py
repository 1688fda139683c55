import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1]
sys.path[:0] = [str(HERE), str(TESTS / "support"), str(TESTS / "attention")]

import driver  # noqa: E402

sys.exit(driver.main())
