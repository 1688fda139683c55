"""Lets timm and transformers import a torchvision that was built for another build of PyTorch.

Its two ops are then unknown and its import fails. No model here uses them, so their names are enough.
"""
import sys


def stand_in():
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        return None
    except RuntimeError as error:
        if "nms" not in str(error):
            raise
    else:
        return None
    import torch

    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for op in ("nms", "qnms"):
        library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


LIBRARY = stand_in()
