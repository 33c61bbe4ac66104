"""llama.cpp's converter for models with a made-up tokenizer.

    python bench/to_gguf.py LLAMA_CPP_SOURCE FOLDER OUT.gguf [more of the converter's options]

The converter knows tokenizers by what they make of a text, and refuses those that it has not met; how text is split
does not matter here, since no prompt is text.
"""

from __future__ import annotations

import sys


def main() -> None:
    source, folder, out, *options = sys.argv[1:]
    sys.path.insert(0, source)
    import convert_hf_to_gguf as converter  # type: ignore[import-not-found]
    from conversion.base import TextModel  # type: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda *_: "qwen2"
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", "bf16", *options]
    converter.main()


if __name__ == "__main__":
    main()
