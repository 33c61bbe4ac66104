"""How `milepost-tiny` is made: its tasks, its tokenizer, its training and its examination. See README.md."""
