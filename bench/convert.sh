#!/usr/bin/env bash
# bench/convert.sh ROOT SHAPE...: a shape's random weights (bench/models.py) as the peers want them: bf16 GGUF for
# llama.cpp, an fp16 export for OpenVINO. What is there already is kept; a peer that is not installed is left out.
set -euo pipefail
root=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)

for shape in "$@"; do
    folder=$root/models/$shape
    if [ -d "$root/llama/source" ] && [ ! -e "$folder/bf16.gguf" ]; then
        options=()
        [ "$shape" = qwen3.5-0.8b ] && options=(--no-mtp)
        "${PYTHON:-python3}" "$here/to_gguf.py" "$root/llama/source/llama.cpp" "$folder/with-tokenizer" \
            "$folder/bf16.gguf" "${options[@]}"
    fi
    if [ -x "$root/openvino/bin/optimum-cli" ] && [ ! -e "$folder/openvino-fp16/openvino_model.bin" ]; then
        older=$root/openvino/transformers-5.2
        [ "$shape" = granite-4.0-h-350m ] && older=
        PYTHONPATH=$older "$root/openvino/bin/optimum-cli" export openvino -m "$folder/with-tokenizer" \
            --task text-generation-with-past --weight-format fp16 "$folder/openvino-fp16"
    fi
done
