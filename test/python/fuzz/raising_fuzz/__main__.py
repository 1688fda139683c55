import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import fuzzing  # noqa: E402

sys.exit(fuzzing.main())
