"""Weights of GPTQ, AWQ and bitsandbytes in the dullest way, as naive.py: one element at a time.

`weights(stored, quantization)` gives {name: (shape, numbers)} of what is packed and the names of all
tensors that take part in it.
"""
import json
import struct

import naive

AWQ_NIBBLE = [0, 4, 1, 5, 2, 6, 3, 7]  # of columns 0 to 7 of a word


def words(tensor):
    return struct.unpack(f"<{len(tensor.data) // 4}I", tensor.data)


def field(stream, position, bits):
    """`bits` bits of a list of words, from bit `position` on, low bits first"""
    pair = stream[position // 32] | (stream + (0,))[position // 32 + 1] << 32
    return pair >> position % 32 & (1 << bits) - 1


def column_codes(stored, module, quantization):
    """GPTQ and AWQ: (shape, numbers) of M.weight"""
    codes, zeros = stored[module + ".qweight"], stored[module + ".qzeros"]
    scales = stored[module + ".scales"]
    factors = naive.values(scales)
    groups, outputs = scales.shape
    code_words, zero_words = words(codes), words(zeros)
    awq = codes.shape[1] != outputs
    bits = 4 if awq else zeros.shape[1] * 32 // outputs
    inputs = codes.shape[0] if awq else codes.shape[0] * 32 // bits
    size = quantization["group_size"] if quantization["group_size"] > 0 else inputs
    g_idx = [i // size for i in range(inputs)]
    if module + ".g_idx" in stored:
        g_idx = struct.unpack(f"<{inputs}i", stored[module + ".g_idx"].data)
    one = 1 if not awq and quantization["checkpoint_format"] == "gptq" else 0

    def awq_field(stream, row, column):
        return stream[(row * outputs + column) // 8] >> 4 * AWQ_NIBBLE[column % 8] & 15

    def code(row, column):
        if awq:
            return awq_field(code_words, row, column)
        position = row * bits
        low = code_words[position // 32 * outputs + column]
        below = position // 32 * outputs + outputs + column
        high = code_words[below] if below < len(code_words) else 0
        return (high << 32 | low) >> position % 32 & (1 << bits) - 1

    def zero(group, column):
        if awq:
            return awq_field(zero_words, group, column)
        # The tool that wrote the cases wraps around.
        return field(zero_words, (group * outputs + column) * bits, bits) + one & (1 << bits) - 1

    numbers = []
    for column in range(outputs):
        for row in range(inputs):
            group = g_idx[row]
            steps = code(row, column) - zero(group, column)
            numbers.append(naive.to_f32(steps * factors[group * outputs + column]))
    return [outputs, inputs], numbers


def nibbles(stored, name):
    """bitsandbytes nf4 and fp4: (shape, numbers)"""
    (state,) = [tensor for other, tensor in stored.items()
                if other.startswith(name + ".quant_state.")]
    state = json.loads(state.data)
    table = naive.values(stored[name + ".quant_map"])
    if state["quant_type"] == "fp4" and state["shape"][-1] % 2 == 0:
        table[8] = -0.0  # in the library's kernels, not in its file
    if "nested_blocksize" in state:
        nested = naive.values(stored[name + ".nested_absmax"])
        nested_table = naive.values(stored[name + ".nested_quant_map"])
        absmax = [naive.to_f32(naive.to_f32(nested_table[code] *
                                            nested[i // state["nested_blocksize"]]) +
                               state["nested_offset"])
                  for i, code in enumerate(stored[name + ".absmax"].data)]
    else:
        absmax = naive.values(stored[name + ".absmax"])
    count = 1
    for extent in state["shape"]:
        count *= extent
    dtype = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[state["dtype"]]
    numbers = []
    for i in range(count):
        pair = stored[name].data[i // 2]
        code = pair & 15 if i % 2 else pair >> 4
        numbers.append(naive.to_f32(table[code] * absmax[i // state["blocksize"]]))
    rounded = naive.Tensor(dtype, state["shape"], naive.encode(numbers, dtype))
    return state["shape"], naive.values(rounded)


def int8(stored, name):
    """bitsandbytes int8: (shape, numbers)"""
    weight = stored[name]
    factor = naive.to_f32(7.874015718698502e-3)
    scales = naive.values(stored[name.removesuffix("weight") + "SCB"])
    codes = struct.unpack(f"<{len(weight.data)}b", weight.data)
    return weight.shape, [naive.to_f32(naive.to_f32(code * scales[i // weight.shape[1]]) * factor)
                          for i, code in enumerate(codes)]


def weights(stored, quantization):
    found, parts = {}, set()
    for name in stored:
        stem = name.removesuffix("weight")
        if name.endswith(".qweight"):
            module = name.removesuffix(".qweight")
            found[module + ".weight"] = column_codes(stored, module, quantization)
            parts |= {module + end for end in (".qweight", ".qzeros", ".scales", ".g_idx")}
        elif name + ".absmax" in stored:
            found[name] = nibbles(stored, name)
            parts |= {other for other in stored if other.startswith(name)}
        elif name.endswith(".weight") and stem + "SCB" in stored:
            found[name] = int8(stored, name)
            parts |= {name, stem + "SCB", stem + "weight_format"}
    return found, parts
