"""Pages as vLLM makes them for a GPU: a platform out of vLLM's tree says that it is like CUDA, the code of GPUs' runners makes specs, sizes and
caches of models of ours, and the views of keys and values are written and read. No kernel runs."""
import json
import os
import subprocess
import sys

from conftest import diffllama
from test_builders import MODELS, SIZES, save

PLATFORM = '''
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum


def plugin():
    return "like_cuda.LikeCuda"


class LikeCuda(Platform):
    _enum, device_name, device_type, dispatch_key, dist_backend = PlatformEnum.OOT, "like CUDA", "cpu", "CPU", "gloo"

    def is_cuda_alike(self):
        return True

    @classmethod
    def get_device_capability(cls, device_id=0):
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        return 80 << 30

    @classmethod
    def check_and_update_config(cls, vllm_config):
        pass
'''
CACHES = '''
import json, sys, tempfile

import torch


def layers_of(folder, options):
    """The layers of a model with their caches, of so many bytes."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec, init_attn_backend
    from vllm.v1.worker.utils import allocate_kv_cache

    config = EngineArgs(folder, skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True, max_model_len=256, **options).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/store", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"):
            initialize_model(vllm_config=config)
        specs, layers = get_kv_cache_spec(config), config.compilation_config.static_forward_context
        backends = [layer.get_attn_backend() for layer in layers.values()]
        layout = resolve_kv_cache_layout(config, [[one.name for one in get_supported_kv_cache_layouts(backends)]], specs.values())
        (made,) = get_kv_cache_configs(config, [specs], [1 << 20])
        _, graphs, sizes = init_attn_backend(made, config, torch.device("cpu"))
        caches = allocate_kv_cache(made, torch.device("cpu"), layout, sizes)
    (size,) = sizes
    return {name: (layers[name].impl, specs[name], cache) for name, cache in caches.items()}, made.num_blocks, size, graphs.min_cg_support.name


def check(layers, blocks, size):
    """Every number of each layer's cache is one of its keys of map 1, keys of map 2 or values, in the page and row of its slot."""
    for _, _, cache in layers.values():
        cache.fill_(-1)
    for number, (impl, spec, cache) in enumerate(layers.values()):
        keys, values = impl._pages(cache)
        heads, pages = impl.key_value_heads, blocks * (spec.block_size // size)
        assert keys.shape == (pages, heads * impl.maps, size, impl.head_size), keys.shape
        assert values.shape == (pages, heads, size, impl.value_size), values.shape
        assert keys[0].is_contiguous() and values[0].is_contiguous()
        assert keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
        assert spec.page_size_bytes * size == 2 * (keys[0].numel() + values[0].numel()) * spec.block_size
        # As a step stores them: page and row of each token, of all slots.
        slots = torch.randperm(pages * size)
        tokens = slots.remainder(96).to(cache.dtype)
        keys.transpose(1, 2)[slots // size, slots % size] = tokens[:, None, None].expand(-1, heads * impl.maps, impl.head_size)
        values.transpose(1, 2)[slots // size, slots % size] = 100 + tokens[:, None, None].expand(-1, heads, impl.value_size)
        assert (cache >= 0).all(), "numbers that are neither keys nor values"
        table = torch.arange(pages).flip(0)  # of one request with all pages
        for view, first in ((keys[:, :heads], 0), (keys[:, -heads:], 0), (values, 100)):
            read = view[table].permute(1, 0, 2, 3).flatten(1, 2)
            expected = first + (table[:, None] * size + torch.arange(size)).flatten().remainder(96).to(cache.dtype)
            assert torch.equal(read, expected[None, :, None].expand_as(read))
        for later, (_, _, other) in enumerate(layers.values()):
            assert later <= number or (other == -1).all(), "another layer's pages"


if __name__ == "__main__":
    from vllm.platforms import current_platform

    assert type(current_platform).__name__ == "LikeCuda" and current_platform.is_cuda_alike() and not current_platform.is_cpu()
    for folder, options in json.loads(sys.argv[1]):
        layers, blocks, size, graphs = layers_of(folder, options)
        check(layers, blocks, size)
        print("RESULT", json.dumps([len(layers), blocks, size, graphs]))
'''


def test_pages(tmp_path):
    (tmp_path / "like_cuda.py").write_text(PLATFORM)
    (tmp_path / "caches.py").write_text(CACHES)
    package = tmp_path / "like_cuda-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: like-cuda\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[vllm.platform_plugins]\nlike_cuda = like_cuda:plugin\n")
    folders = [tmp_path / name for name in ("diffllama", "diff_v2", "motif_groups")]
    for folder in folders:
        folder.mkdir()
    diffllama(folders[0])
    for folder in folders[1:]:
        save(folder, SIZES | MODELS[folder.name])
    # 16 is what vLLM takes by itself for a GPU.
    cases = [(str(folders[0]), {}), (str(folders[0]), {"block_size": 128}), (str(folders[1]), {"block_size": 32}), (str(folders[2]), {"block_size": 48})]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run([sys.executable, tmp_path / "caches.py", json.dumps(cases)], env=environment, capture_output=True, text=True, timeout=600)
    results = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert done.returncode == 0 and len(results) == len(cases), done.stderr[-4000:]
    assert [(layers, size) for layers, _, size, _ in results] == [(2, 16), (2, 128), (3, 32), (3, 48)]
    assert all(blocks > 1 and graphs == "NEVER" for _, blocks, _, graphs in results)
