"""Writes a Hugging Face directory (Llama or Qwen2) as one GGUF file for llama.cpp: same weights, no tokenizer.

    python to_gguf.py DIR FILE.gguf [--dtype f32|bf16]

Matrices are written in --dtype, norms and biases in f32, as llama.cpp expects.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np


def tensors(directory):
    """Yields name and f32 array of each tensor in the directory's safetensors files, one at a time."""
    for file in sorted(directory.glob("*.safetensors")):
        size = int(np.fromfile(file, "<u8", 1)[0])
        with open(file, "rb") as f:
            f.seek(8)
            header = json.loads(f.read(size))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]]
            begin, end = entry["data_offsets"]
            flat = np.fromfile(file, kind, (end - begin) // np.dtype(kind).itemsize, offset=8 + size + begin)
            if entry["dtype"] == "BF16":  # bf16 is the upper half of an f32
                flat = (flat.astype("<u4") << 16).view("<f4")
            yield name, flat.astype("<f4").reshape(entry["shape"])


def paired(weight, head_dim):
    """Reorders the rows of each head from (i, i + half) to (2i, 2i + 1), because llama.cpp's rope rotates neighbouring
    rows in Llama models."""
    half = head_dim // 2
    order = np.stack([np.arange(half), np.arange(half) + half], 1).ravel()
    return weight.reshape(-1, head_dim, *weight.shape[1:])[:, order].reshape(weight.shape)


def convert(directory, out, dtype):
    config = json.loads((directory / "config.json").read_text())
    family = config["model_type"]
    arch = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}.get(family)
    rope = config.get("rope_parameters") or {}
    if arch is None or config.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise SystemExit(f"{directory}: only Llama and Qwen2 without rope scaling are converted")
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads

    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.get("rope_theta") or rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type({"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16}[dtype])

    names = gguf.get_tensor_name_map(arch, layers)
    for name, array in tensors(directory):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        target = names.get_name(name, (".weight", ".bias"))
        if target is None:
            raise SystemExit(f"{directory}: tensor {name} has no place in GGUF")
        if family == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = paired(array, head_dim)
        if array.ndim == 2 and dtype == "bf16":
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(target, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    convert(args.directory, args.out, args.dtype)
