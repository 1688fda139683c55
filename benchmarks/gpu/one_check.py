"""Launches a few cases once, for compute-sanitizer to watch: python one_check.py PACK CASE[,CASE...] SEED"""
import sys

import launcher
import operands
import probe


def main():
    folder, names, seed = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    opened = launcher.open_launcher(folder, "cuda", package_folders=probe.package_folders())
    for number, name in enumerate(names):
        case = opened.cases[name]
        for layout in ("dense", "odd"):
            tensors = operands.make(case, 1, case.queries or 70, 131, layout, seed + number, opened.torch_device)
            call = opened.prepare(case, tensors)
            call.run()
            opened.device.wait()
            call.close()
    opened.close()
    print("checks done")


if __name__ == "__main__":
    main()
