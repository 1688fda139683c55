"""One target under atheris: python fuzz/python --target=NAME [options and folders of libFuzzer]."""
import importlib
import sys

import atheris

import fuzz_targets


def main() -> int:
    names = [argument.partition("=")[2] for argument in sys.argv[1:] if argument.startswith("--target=")]
    if len(names) != 1 or names[0] not in fuzz_targets.TARGETS:
        print(f"expected --target=NAME, with one of {' '.join(fuzz_targets.TARGETS)}, but got {' '.join(names) or 'none'}", file=sys.stderr)
        return 2
    target = fuzz_targets.TARGETS[names[0]]
    with atheris.instrument_imports(include=["diffattn"]):
        for module in fuzz_targets.IMPORTS[names[0]]:
            importlib.import_module(module)
    atheris.Setup([argument for argument in sys.argv if not argument.startswith("--target=")], lambda data: target(data) and None)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
